//! The folder of checkpoints: names, whose it is, whether all ranks see it.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nd_comm::prelude::Communicator;

use super::file_error;
use crate::agree::all_well;
use crate::error::Result;

/// The file that says what a checkpoint has.
pub const MANIFEST: &str = "manifest.json";
/// The file that belongs to the run that writes here.
const LOCK: &str = ".lock";
/// How long a run waits for another to end: the ranks of one that was killed may take a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of a checkpoint.
pub fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The name of one that is not whole yet, or no more.
pub fn partial(step: u64) -> String {
    format!(".{}.partial", name(step))
}

/// The step of a checkpoint of this name.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    digits.parse().ok().filter(|_| digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether one of this name was not finished.
pub fn is_partial(name: &str) -> bool {
    name.starts_with(".step-") && name.ends_with(".partial")
}

/// What is in a folder of checkpoints.
#[derive(Debug, Default, PartialEq)]
pub struct Listed {
    /// Those that have their name, by step.
    pub steps: Vec<(u64, PathBuf)>,
    /// What was not finished.
    pub partials: Vec<PathBuf>,
}

/// The checkpoints in a folder; none where there is no folder.
pub fn list(folder: &Path) -> io::Result<Listed> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Listed::default()),
        entries => entries?,
    };
    let (mut steps, mut partials) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match step_of(name) {
            _ if !path.is_dir() => {}
            Some(step) => steps.push((step, path)),
            None if is_partial(name) => partials.push(path),
            None => {}
        }
    }
    steps.sort_unstable();
    partials.sort_unstable();
    Ok(Listed { steps, partials })
}

/// Sees to it that the names in a folder are on the disk.
pub fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the folder if it is not there, for this run alone, and looks whether all ranks see it. All ranks call this. The folder
/// is theirs as long as what is returned lives.
///
/// # Errors
/// The same on all ranks: [`Error::File`](crate::Error::File) when it cannot be made or written, another run writes there, or a
/// rank does not see it.
pub fn open(comm: &Communicator, folder: &Path) -> Result<Option<File>> {
    let first = comm.rank() == 0;
    let own = all_well(comm, if first { make(folder, PATIENCE) } else { Ok(None) })?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let mut probe = [since];
    comm.broadcast(&mut probe, 0)?;
    let probe = folder.join(partial(probe[0]));
    let made = if first { std::fs::create_dir(&probe) } else { Ok(()) };
    all_well(comm, made.map_err(|e| cannot(folder, &e)))?;
    let seen = File::create_new(probe.join(comm.rank().to_string())).map(drop).map_err(|e| match e.kind() {
        ErrorKind::NotFound => file_error(
            folder,
            "what rank 0 has made in it is not seen here; name a folder that all ranks see, on a file system that all hosts \
             share, with --checkpoint",
        ),
        _ => cannot(folder, &e),
    });
    let seen = all_well(comm, seen);
    if first {
        let _ = std::fs::remove_dir_all(&probe);
    }
    seen.map(|()| own)
}

fn make(folder: &Path, patience: Duration) -> Result<Option<File>> {
    let cannot = |e: io::Error| cannot(folder, &e);
    std::fs::create_dir_all(folder).map_err(cannot)?;
    let file =
        File::options().create(true).truncate(false).write(true).open(folder.join(LOCK)).map_err(cannot)?;
    let until = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20))
            }
            Err(TryLockError::WouldBlock) => {
                let problem = "another nd-train writes checkpoints here; wait for it, or name another folder with --checkpoint";
                return Err(file_error(folder, problem));
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}

fn cannot(folder: &Path, error: &io::Error) -> crate::Error {
    file_error(
        folder,
        format!("no checkpoint can be written here: {error}; name another folder with --checkpoint"),
    )
}

#[cfg(test)]
mod tests {
    use nd_tests::worlds::each;

    use super::*;

    #[test]
    fn names_are_those_of_steps() {
        assert_eq!([name(120), partial(120)], ["step-00000120", ".step-00000120.partial"]);
        for step in [0, 120, 99_999_999, 123_456_789_012] {
            assert_eq!(step_of(&name(step)), Some(step));
            assert!(is_partial(&partial(step)) && step_of(&partial(step)).is_none());
        }
        for other in ["step-120", "step-+0000120", "step-", "steps-00000120", "step-00000120.old"] {
            assert_eq!((step_of(other), is_partial(other)), (None, false), "{other}");
        }
    }

    #[test]
    fn a_folder_is_one_run_s_and_seen_by_all_its_ranks() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let comms = Communicator::local(3).unwrap();
        let own = each(&comms, |comm| open(comm, &at("new/one")).unwrap());
        assert_eq!(own.iter().filter(|own| own.is_some()).count(), 1);
        assert_eq!(list(&at("new/one")).unwrap(), Listed::default());
        let error = make(&at("new/one"), Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("another nd-train writes checkpoints here"), "{error}");
        drop(own);
        make(&at("new/one"), Duration::ZERO).unwrap();
        // As on hosts that each have a folder of this name.
        std::fs::create_dir(at("own")).unwrap();
        let said = each(&comms, |comm| {
            open(comm, &at(if comm.rank() == 2 { "own" } else { "new/one" })).unwrap_err().to_string()
        });
        assert!(
            said[0].starts_with("rank 2: ") && said[2].starts_with(at("own").to_str().unwrap()),
            "{said:?}"
        );
        assert!(
            said.iter().all(|said| said.contains("not seen here; name a folder that all ranks see")),
            "{said:?}"
        );
        std::fs::write(at("file"), "").unwrap();
        let said = each(&comms, |comm| open(comm, &at("file")).unwrap_err().to_string());
        assert!(said.iter().all(|said| said.contains("no checkpoint can be written here")), "{said:?}");
    }
}
