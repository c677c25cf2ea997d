//! That nothing which is read is written over.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nd_training::data::Tokenizer;
use nd_training::train::Config;

use super::error::Error;
use super::plot::Losses;

/// Refuses files to write that are among those to read, by whatever names, and two that are one. Of the settings there is the
/// file of `--config` and that of `--deepspeed`.
pub fn apart(config: &Config, settings: [Option<&Path>; 2]) -> Result<(), Error> {
    let outputs = [("--metrics", &config.metrics), ("--plot", &config.plot)];
    let mut taken = read(config, settings);
    for (flag, path) in outputs {
        let Some(path) = path else { continue };
        let same = |(_, other): &&(String, PathBuf)| are_one(path, other);
        if let Some((what, other)) = taken.iter().find(same) {
            return Err(Error::Usage(format!(
                "{flag} {} would write over {}, which is {what}; name another file",
                path.display(),
                other.display()
            )));
        }
        taken.push((format!("what {flag} writes"), path.clone()));
    }
    Ok(())
}

/// A file for this run alone: two runs that wrote one at the same time would mix their rows. Once it is, it is emptied, but for
/// the rows of steps up to `step`, after which this run goes on; what is drawn of these.
pub fn alone(path: &Path, flag: &str, step: u64) -> Result<(File, Vec<Losses>), Error> {
    let failed = |e| Error::Usage(format!("cannot write {}: {e}; check {flag}", path.display()));
    let mut file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    // A pipe or a device may have several that write to it, and has no length.
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Ok((file, Vec::new()));
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Usage(format!(
                "another nd-train is writing {}; wait for it, or name another file with {flag}",
                path.display()
            )));
        }
        // A file system without locks.
        Err(TryLockError::Error(_)) | Ok(()) => {}
    }
    let (bytes, rows) = if step > 0 { kept(path, step).map_err(failed)? } else { Default::default() };
    file.set_len(bytes).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
    Ok((file, rows))
}

/// The rows of a file up to that of a step, in order, and their bytes; what follows a line that is none is not looked at.
fn kept(path: &Path, step: u64) -> io::Result<(u64, Vec<Losses>)> {
    let (mut lines, mut line) = (BufReader::new(File::open(path)?), Vec::new());
    let (mut bytes, mut rows) = (0, Vec::new());
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line)?;
        match serde_json::from_slice::<Losses>(&line) {
            Ok(row) if row.step <= step && line.ends_with(b"\n") => {
                bytes += read as u64;
                rows.push(row);
            }
            _ => return Ok((bytes, rows)),
        }
    }
}

/// Every file that is read, with what it is.
fn read(config: &Config, [settings, deepspeed]: [Option<&Path>; 2]) -> Vec<(String, PathBuf)> {
    let mut all = Vec::new();
    let mut add = |what: &str, path: Option<&Path>| {
        all.extend(path.map(|path| (what.to_owned(), path.to_owned())));
    };
    add("the text to train on (--data)", config.data.as_deref());
    add("the text to evaluate on (--eval-data)", config.eval_data.as_deref());
    add("the file of settings (--config)", settings);
    add("the file of settings (--deepspeed)", deepspeed);
    if let Some(Tokenizer::File(path)) = &config.tokenizer {
        add("the tokenizer (--tokenizer)", Some(path));
    }
    add("the model (--init)", config.init.as_deref());
    let folder = config.init.iter().filter_map(|folder| fs::read_dir(folder).ok());
    for entry in folder.flatten().flatten() {
        add("a file of the model (--init)", Some(&entry.path()));
    }
    all
}

/// Whether two paths lead to one file, which may not exist yet.
fn are_one(a: &Path, b: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).ok().filter(|data| data.is_file());
    match (inode(a), inode(b)) {
        (Some(a), Some(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (None, None) => match (resolved(a), resolved(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
        _ => false,
    }
}

/// The folder's own path, and the name in it.
fn resolved(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_not_written_over_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("model")).unwrap();
        for name in ["text", "set.toml", "model/config.json"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::hard_link(at("text"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("text"), at("soft")).unwrap();
        let said = |metrics: &str, plot: &str| {
            let config = Config {
                data: Some(at("text")),
                init: Some(at("model")),
                metrics: Some(at(metrics)),
                plot: Some(at(plot)),
                ..Config::default()
            };
            apart(&config, [Some(&at("set.toml")), None]).map_err(|e| e.to_string())
        };
        assert_eq!(said("m.jsonl", "p.png"), Ok(()));
        for (name, what) in [
            ("text", "--data"),
            ("model/../text", "--data"),
            ("hard", "--data"),
            ("soft", "--data"),
            ("set.toml", "--config"),
            ("model/config.json", "--init"),
        ] {
            let errors = [said(name, "p.png").unwrap_err(), said("m.jsonl", name).unwrap_err()];
            assert!(errors.iter().all(|e| e.contains(what) && e.contains(name)), "{errors:?}");
        }
        assert!(said("one", "model/../one").unwrap_err().contains("what --metrics writes"));
    }

    #[test]
    fn a_file_is_one_run_s_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        fs::write(&path, "old").unwrap();
        let (file, _) = alone(&path, "--metrics", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::write(&path, "row").unwrap();
        let error = alone(&path, "--metrics", 0).unwrap_err();
        assert!(error.to_string().contains("another nd-train") && error.code() == 2, "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"row");
        drop(file);
        alone(&path, "--metrics", 0).unwrap();
        let error = alone(&folder.path().join("none/m"), "--metrics", 0).unwrap_err();
        assert!(error.to_string().contains("--metrics") && error.code() == 2, "{error}");
    }

    #[test]
    fn rows_of_steps_that_were_made_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        let (first, second, third) = ("{\"step\":1,\"loss\":2}\n", "{\"step\":2}\n", "{\"step\":3}\n");
        for (before, step, after) in [
            (vec![first, second, third], 2, vec![first, second]),
            (vec![first, second, third], 9, vec![first, second, third]),
            (vec![first, second, "{\"step\":3}"], 9, vec![first, second]),
            (vec![first, "{\"ste", "\n", second], 9, vec![first]),
            (vec!["other\n", first], 9, vec![]),
            (vec![first], 0, vec![]),
        ] {
            fs::write(&path, before.concat()).unwrap();
            let (mut file, rows) = alone(&path, "--metrics", step).unwrap();
            assert_eq!(
                rows.iter().map(|row| row.step).collect::<Vec<_>>(),
                (1..=after.len() as u64).collect::<Vec<_>>()
            );
            io::Write::write_all(&mut file, b"next").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), after.concat() + "next", "{before:?}, {step}");
        }
    }
}
