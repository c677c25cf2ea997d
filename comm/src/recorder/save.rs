//! Writes a file whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes `bytes` to `path`, by way of a new file beside it that takes its name when it is complete; nobody follows a link
/// that someone else has put there. Other users may read it if `open` and the process's umask say so.
pub(super) fn save(path: &Path, bytes: &[u8], open: bool) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
    let unique = format!(".{:x}-{:x}.part", std::process::id(), rand::random::<u64>());
    let mut temporary = name.to_owned();
    temporary.push(unique);
    let temporary = path.with_file_name(temporary);
    let write = || {
        let mode = if open { 0o666 } else { 0o600 };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        drop(file);
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            || fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        let path = folder.path().join("a");
        save(&path, b"one", false).unwrap();
        save(&path, b"two", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(), ["a"]);
        // A link is replaced, not followed.
        let link = folder.path().join("b");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        save(&link, b"three", false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        // A folder is in the way: nothing is left behind.
        let blocked = folder.path().join("c");
        fs::create_dir(&blocked).unwrap();
        fs::write(blocked.join("x"), "").unwrap();
        save(&blocked, b"four", false).unwrap_err();
        assert_eq!(names().len(), 3);
        save(&folder.path().join("no").join("d"), b"", false).unwrap_err();
    }
}
