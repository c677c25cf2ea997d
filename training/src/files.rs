//! What files that are read must be.

use std::io;
use std::path::Path;

/// Looks whether a path leads to a regular file: others have no length, may be read once only, or never end.
///
/// # Errors
/// The system's, or what it is instead.
pub fn regular(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let kind = path.metadata()?.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {what}, no regular file; write what it has into a file first")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_devices_and_folders_are_no_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| regular(path).map_err(|e| e.to_string());
        assert!(said(folder.path()).unwrap_err().contains("it is a folder, no regular file"));
        assert!(said(Path::new("/dev/zero")).unwrap_err().contains("it is a device, no regular file"));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(said(&socket).unwrap_err().contains("it is a socket"));
        let file = folder.path().join("file");
        assert!(said(&file).unwrap_err().contains("No such file"));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, folder.path().join("link")).unwrap();
        assert_eq!([said(&file), said(&folder.path().join("link"))], [Ok(()), Ok(())]);
    }
}
