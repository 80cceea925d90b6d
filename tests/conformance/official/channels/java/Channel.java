import io.grpc.*;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.*;
import java.util.*;
import java.util.concurrent.TimeUnit;

/**
 * One channel of grpc-java with TLS, as the official Java client opens it, driven line by line: `Channel TARGET CA`.
 *
 * A line on stdin is one call: METHOD, how many messages of the answer are read, a token or -, the request in hex. What
 * came is one line on stdout: `ok HEX`, or `error CODE words`.
 */
public final class Channel {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    /** The bytes are made and read by the test. */
    private static final MethodDescriptor.Marshaller<byte[]> RAW = new MethodDescriptor.Marshaller<>() {
        @Override public InputStream stream(byte[] value) { return new ByteArrayInputStream(value); }

        @Override public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    };

    private static String call(ManagedChannel channel, String line) {
        String[] words = line.split(" ");
        int count = Integer.parseInt(words[1]);
        byte[] request = words.length > 3 ? HexFormat.of().parseHex(words[3]) : new byte[0];
        Metadata metadata = new Metadata();
        if (!words[2].equals("-")) {
            metadata.put(AUTHORIZATION, "Bearer " + words[2]);
        }
        MethodDescriptor<byte[], byte[]> method = MethodDescriptor.<byte[], byte[]>newBuilder(RAW, RAW)
                .setType(MethodDescriptor.MethodType.SERVER_STREAMING).setFullMethodName(words[0]).build();
        io.grpc.Channel known =
                ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
        List<String> answers = new ArrayList<>();
        Context.CancellableContext context = Context.current().withCancellation();
        Context before = context.attach();
        try {
            Iterator<byte[]> found = ClientCalls.blockingServerStreamingCall(
                    known, method, CallOptions.DEFAULT.withDeadlineAfter(60, TimeUnit.SECONDS), request);
            while (answers.size() < count) {
                answers.add(HexFormat.of().formatHex(found.next()));
            }
        } finally {
            context.detach(before);
            context.cancel(null);
        }
        return String.join(" ", answers);
    }

    public static void main(String[] arguments) throws IOException {
        ManagedChannel channel = NettyChannelBuilder.forTarget(arguments[0])
                .sslContext(GrpcSslContexts.forClient().trustManager(new File(arguments[1])).build())
                .build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println("ok " + call(channel, line));
            } catch (StatusRuntimeException error) {
                Status status = error.getStatus();
                System.out.println("error " + status.getCode() + " " + status.getDescription() + " " + status.getCause());
            }
        }
        channel.shutdownNow();
    }
}
