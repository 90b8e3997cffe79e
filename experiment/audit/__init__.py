"""Offline verification of a run, with base dependencies only.

The auditor opens files for reading, writes nothing, and trusts no text of the run. Its checks, numbered here once
and again above the code; each finding carries the identifier in brackets.

Bytes: is this what was written?
  B1  The journal's framing, hashes, chain, segments and watermark hold. [J-…, see `docs/journal-format.md`]
  B2  The journal is closed and has no torn end. [J-OPEN, J-TORN]
  B3  Every head that was kept elsewhere lies on the chain. [K-RUN, K-ROLLBACK, K-FORK]
  B4  `plan.json` is the plan that the first record names, and the given one. [I-PLAN, I-SCHEMA, I-GIVEN]
  B5  The claim of the plan, where it is at hand, names this run; plan and seal beside it are the run's.
      [I-CLAIM, I-SEAL]
  B6  The inputs that the plan froze, where they are at hand, are unchanged. [I-INPUT]
  B7  Every artifact is there and has its digest. [A-PATH, A-MISSING, A-DIGEST]
  B8  Every sealed checkpoint is there and has its tree. [T-PATH, T-MISSING, T-SEAL, T-TREE, T-ENTRY]
  B9  Nothing else lies beside the evidence and the checkpoints. [T-EXTRA, T-LEFTOVER]
  B10 Recorded inspections continue the closed journal, and are of the exported samples. [J-INSPECTION]

Protocol: did it happen in the order, and with the material, that the plan froze?
  P1  Records come in an order that the protocol allows. [P-ORDER, P-TWICE, P-ARM]
  P2  Each arm qualified, with three branches of the planned steps. [P-QUALIFY]
  P3  Each arm made steps 1 to N, each once; steps done again came out the same. [P-STEP, P-REDONE]
  P4  Each step had the planned learning rate. [P-RATE]
  P5  Each step trained on the planned episodes and number of rollouts. [P-EPISODES]
      Every turn of every rollout was sampled with the plan's seed. [P-SEED]
  P6  Trainer states were sealed at the planned steps, and training went on from them. [P-CHECKPOINT]
  P7  DEV and final played the planned items and seeds, with no policy but those allowed. [P-EVALUATION]
  P8  The selection is complete, and was made before any final result. [P-SELECT]
  P9  The comparisons are complete, and of the assessed policies. [P-COMPARE]
  P10 The close record says what the journal holds. [P-CLOSE]
  P11 Every worker computed with the planned threads and the planned libraries. [P-ENVIRONMENT]
  P12 A trained policy was evaluated only after its weights were accounted for. [P-MERGE]
  P13 The planned samples were exported for a reviewer. [P-SAMPLES]
  P14 The plan's own sets are disjoint and its schedule is whole. [P-PLAN]

Recompute: do the numbers follow from the evidence?
  R1  Evidence files are canonical records in order, whose token contexts, calls and counts add up. [R-EVIDENCE]
  R2  The facts of each step follow from its rollouts. [R-STEP]
  R3  The qualification verdict follows from the branches, and training began with their steps. [R-QUALIFY, R-PREFIX]
  R4  Each outcome of an evaluation follows from its rollout. [R-OUTCOME]
  R5  The selection follows from the DEV outcomes. [R-SELECT]
  R6  Every comparison follows from the final outcomes, bit for bit. [R-COMPARE]
  R7  Evaluated weights are the baseline's with the sealed adapter, and assessed ones differ from it. [R-MERGE]
  R8  The exported samples follow from the final rollouts. [R-SAMPLES]
"""

from __future__ import annotations

from experiment.audit.auditor import audit_run

__all__ = ["audit_run"]
