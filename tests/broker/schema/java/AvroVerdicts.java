import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/** Reads lines "writer TAB reader TAB datum,datum,…" (base64) and answers each with what reading the data gave. */
public final class AvroVerdicts {
    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            System.out.println(verdict(text(parts[0]), text(parts[1]), parts[2].split(",", -1)));
        }
    }

    private static String verdict(String writerText, String readerText, String[] data) {
        Schema writer;
        Schema reader;
        try {
            writer = new Schema.Parser().parse(writerText);
            reader = new Schema.Parser().parse(readerText);
        } catch (RuntimeException error) {
            return "no schema: " + shown(error);
        }
        for (String datum : data) {
            byte[] bytes = Base64.getDecoder().decode(datum);
            try {
                BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, null);
                new GenericDatumReader<Object>(writer, reader).read(null, decoder);
                if (!decoder.isEnd()) {
                    return "left over";
                }
            } catch (Exception | StackOverflowError error) {
                return "not read: " + shown(error);
            }
        }
        return "read";
    }

    private static String text(String encoded) throws Exception {
        return new String(Base64.getDecoder().decode(encoded), "UTF-8");
    }

    private static String shown(Throwable error) {
        return String.valueOf(error).replaceAll("\\s+", " ");
    }
}
