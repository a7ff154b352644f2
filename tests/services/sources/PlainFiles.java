import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's local files without a second file of checksums for each, and without a process of chmod for either. */
public class PlainFiles extends LocalFileSystem {
    public PlainFiles() {
        super(new RawLocalFileSystem() {
            @Override
            public void setPermission(Path path, FsPermission permission) throws IOException {
                String all = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                        + permission.getOtherAction().SYMBOL;
                Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(all));
            }
        });
        setWriteChecksum(false);
    }
}
