package world;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.connect.proto.ConfigRequest;
import org.apache.spark.connect.proto.KeyValue;
import org.sparkproject.connect.grpc.Metadata;
import org.sparkproject.connect.grpc.ServerCall;
import org.sparkproject.connect.grpc.ServerCallHandler;
import org.sparkproject.connect.grpc.ServerInterceptor;
import org.sparkproject.connect.grpc.Status;
import org.sparkproject.connect.protobuf.Descriptors.FieldDescriptor;
import org.sparkproject.connect.protobuf.Message;
import org.sparkproject.connect.grpc.ForwardingServerCallListener;

/**
 * Looks at every request. The owner, who knows the secret, may do everything; others use the owner's sessions, change
 * free settings only, and send no code, no files and no orders about sessions.
 */
public final class Gate implements ServerInterceptor {
  private static final Metadata.Key<String> SECRET = Metadata.Key.of("x-owner", Metadata.ASCII_STRING_MARSHALLER);
  private static final String EXPECTED = System.getenv("WORLD_OWNER");

  private static final Set<String> REFUSED_REQUESTS = Set.of(
      "AddArtifactsRequest", "ReleaseSessionRequest", "InterruptRequest", "CloneSessionRequest", "ArtifactStatusesRequest");

  private static final Set<String> REFUSED_PARTS = Set.of(
      "Any", "CompressedOperation", "ScalarScalaUDF", "PythonUDF", "JavaUDF", "CommonInlineUserDefinedFunction", "TypedAggregateExpression",
      "CommonInlineUserDefinedTableFunction", "CommonInlineUserDefinedDataSource", "MapPartitions", "GroupMap",
      "CoGroupMap",
      "ApplyInPandasWithState", "TransformWithStateInfo", "WriteStreamOperationStart", "StreamingQueryCommand",
      "StreamingQueryManagerCommand", "StreamingQueryListenerBusCommand", "CreateResourceProfileCommand",
      "ExecuteExternalCommand", "MlCommand", "MlRelation", "PipelineCommand", "GetResourcesCommand", "CheckpointCommand",
      "CachedLocalRelation", "ChunkedCachedLocalRelation");

  private static final Set<String> SESSIONS = ConcurrentHashMap.newKeySet();

  @Override
  public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
    boolean isOwner = EXPECTED != null && EXPECTED.equals(headers.get(SECRET));
    ServerCall.Listener<Q> listener = next.startCall(call, headers);
    return new ForwardingServerCallListener.SimpleForwardingServerCallListener<>(listener) {
      private boolean isRefused;

      @Override
      public void onMessage(Q request) {
        String reason = isOwner ? remember(request) : refuse(request);
        if (reason == null) {
          super.onMessage(request);
        } else if (!isRefused) {
          isRefused = true;
          call.close(Status.PERMISSION_DENIED.withDescription(Guard.refusal(reason).getMessage()), new Metadata());
        }
      }

      @Override
      public void onHalfClose() {
        if (!isRefused) {
          super.onHalfClose();
        }
      }
    };
  }

  private static String remember(Object request) {
    String session = session(request);
    if (request.getClass().getSimpleName().equals("ReleaseSessionRequest")) {
      SESSIONS.remove(session);
    } else {
      SESSIONS.add(session);
    }
    return null;
  }

  private static String refuse(Object request) {
    String kind = request.getClass().getSimpleName();
    if (!(request instanceof Message message) || REFUSED_REQUESTS.contains(kind)) {
      return kind;
    }
    if (!SESSIONS.contains(session(request))) {
      return "a session of one's own";
    }
    return request instanceof ConfigRequest config ? refuseSettings(config.getOperation()) : refuseParts(message);
  }

  private static String session(Object request) {
    if (!(request instanceof Message message)) {
      return "";
    }
    FieldDescriptor field = message.getDescriptorForType().findFieldByName("session_id");
    return field == null ? "" : (String) message.getField(field);
  }

  private static String refuseSettings(ConfigRequest.Operation operation) {
    for (KeyValue pair : operation.getSet().getPairsList()) {
      if (!Guard.isFree(pair.getKey())) {
        return "SET " + pair.getKey();
      }
    }
    for (String key : operation.getUnset().getKeysList()) {
      if (!Guard.isFree(key)) {
        return "RESET " + key;
      }
    }
    return operation.hasGetAll() ? "SET of all settings" : null;
  }

  /** A source is asked for its columns before the server's other rules see the plan. */
  private static String refuseFormat(Message source) {
    String format = (String) source.getField(source.getDescriptorForType().findFieldByName("format"));
    return format.isEmpty() || format.equalsIgnoreCase("delta") ? null : "the format " + format;
  }

  private static String refuseParts(Message message) {
    for (Map.Entry<FieldDescriptor, Object> entry : message.getAllFields().entrySet()) {
      if (entry.getKey().getJavaType() != FieldDescriptor.JavaType.MESSAGE) {
        continue;
      }
      Iterable<?> parts = entry.getKey().isRepeated() ? (Iterable<?>) entry.getValue() : Set.of(entry.getValue());
      for (Object part : parts) {
        String kind = ((Message) part).getDescriptorForType().getName();
        if (REFUSED_PARTS.contains(kind) && !entry.getKey().getName().equals("request_options")) {
          return kind;
        }
        String reason = kind.equals("DataSource") ? refuseFormat((Message) part) : refuseParts((Message) part);
        if (reason != null) {
          return reason;
        }
      }
    }
    return null;
  }
}
