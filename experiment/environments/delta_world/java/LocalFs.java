package world;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** {@link LocalFiles} for Hadoop's other interface to files, by which Delta writes its log. */
public final class LocalFs extends DelegateToFileSystem {
  public LocalFs(URI uri, Configuration configuration) throws IOException, URISyntaxException {
    super(uri, new LocalFiles(), configuration, "file", false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  @Override
  public boolean isValidName(String name) {
    return true;
  }
}
