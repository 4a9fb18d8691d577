import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Gets a file several times at once: URL FILE COUNT. */
class Client {
    public static void main(String[] arguments) throws Exception {
        byte[] expected = Files.readAllBytes(Path.of(arguments[1]));
        int count = Integer.parseInt(arguments[2]);
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        long start = System.nanoTime();
        List<CompletableFuture<Double>> took = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            took.add(client.sendAsync(request, BodyHandlers.ofByteArray()).thenApply(response -> {
                if (response.statusCode() != 200 || !Arrays.equals(response.body(), expected)) {
                    throw new IllegalStateException("wrong body");
                }
                return (System.nanoTime() - start) / 1e9;
            }));
        }
        double longest = 0;
        for (CompletableFuture<Double> one : took) {
            longest = Math.max(longest, one.get());
        }
        System.out.printf("%.1f/s, longest %.2f s%n", count / ((System.nanoTime() - start) / 1e9), longest);
        System.exit(0);
    }
}
