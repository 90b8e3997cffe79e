#!/usr/bin/env bash
# A second verifier, from docs/journal-format.md alone (J1 to J3, J6, J8, J11 to J13, T8, T9): bash docs/verify.sh RUN
set -euo pipefail; export LC_ALL=C; cd "$1"; t=$(mktemp -d); trap 'rm -rf "$t"' EXIT; touch "$t"/{art,trees}
fail() { echo "fault: $*"; exit 1; }; derived() { b3sum --no-names --derive-key "experiment 2026-11-29 $1 v1"; }
open_line() { hash=$(tail -c +77 "$1" | head -c -2 | tee "$t/raw" | derived "journal $2"); raw=$(< "$t/raw")
    printf '{"h":"%s","r":%s}\n' "$hash" "$raw" | cmp -s - "$1" || fail "$3: J2 or J3, is not what was written"; }
open_line head.json head head.json; head=$raw marked='' n=0 seg=0 kind='' ends='' run=${raw#*'"run":"'}; run=${run%%\"*}
plan=$(derived plan < plan.json); prev=$(printf %s "$plan$run" | derived 'journal genesis')
head -n 1 journal/000000.jsonl | grep -qaF '"plan":"'"$plan"'"' || fail 'plan.json: is not the plan of record 0'
foot='"prev":"([^"]+)","run":"([^"]+)","seg":([0-9]+),"seq":([0-9]+),"t":"[^"]+","type":"([^"]+)","v":1}$'
for file in journal/*; do good=0; rm -f "$t"/line.*; split -l 1 -d -a 6 "$file" "$t/line."
    [[ $file = "$(printf journal/%06d.jsonl $seg)" && $kind != close ]] || fail "$file: J1 or J13, does not belong here"
    for line in "$t"/line.*; do [[ -f $line && $(tail -c 1 "$line" | wc -l) = 1 ]] || break # what is left is torn
        at="$file, record $n"; open_line "$line" record "$at"; [[ $kind != close && $raw =~ $foot ]] || fail "$at: J5"
        kind=${BASH_REMATCH[5]}; [ "${BASH_REMATCH[*]:1:4}" = "$prev $run $seg $n" ] || fail "$at: J6, does not follow"
        [[ $kind != resume || $raw = *'"closes":['"$ends],"* ]] || fail "$at: J11, earlier segments end otherwise"
        [ "$kind" != resume ] || ends=''; prev=$hash; ((n += 1)); ((good += $(wc -c < "$line")))
        [ "$head" != '{"bytes":'$good',"h":"'$hash'","run":"'$run'","seg":'$seg',"size":'$n',"v":1}' ] || marked=yes
        sed -E 's/^\{"art":\[//; s/\],"body":.*//; s/\},\{/}\n{/g' <<< "$raw" >> "$t/art"
        [ "$kind" != ckpt.sealed ] || sed -E 's/.*"path":"(.+)","st.*"tree":"(.{64})".*/\2 \1/' <<< "$raw" >> "$t/trees"
    done; torn=$(($(wc -c < "$file") - good)); rest=$(tail -c $torn "$file" | b3sum --no-names)
    ends+="${ends:+,}"'{"b3":"'$rest'","good":'$good',"seg":'$((seg++))',"torn":'$torn'}'
done; [[ $marked && ($kind != close || $torn = 0) ]] || fail 'journal: J12 or J13, ends otherwise than it did'
m=$(sed -E '/^$/d; s/^\{"b3":"(.{64})".*"p":"(.*)","role".*/\1  \2/' "$t/art" | sort -u | tee "$t/sums" | wc -l)
while read -r tree path; do [ "$(derived tree < "$path/seal.json")" = "$tree" ] || fail "$path: T9, is another tree"
    tr '{}' '\n\n' < "$path/seal.json" | sed -nE "s|^\"b3\":\"(.{64})\".*\"p\":\"(.*)\"$|\1  $path/\2|p" >> "$t/sums"
done < "$t/trees"; bad=$(b3sum --check --quiet "$t/sums" 2>&1) || fail "${bad%%$'\n'*}"
new=$(find . -regex './\(evidence\|checkpoints\)/.*' -type f ! -name seal.json -printf '%P\n' | sort)
new=$(cut -c 67- "$t/sums" | sort | comm -13 - <(echo "$new")); [[ $kind != close || ! $new ]] || fail "T7, $new"
echo "ok: $n records, $m artifacts"
