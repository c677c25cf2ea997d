//! `nd-topo diagnose`: reads what ranks wrote when they failed, and says who is to blame.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use nd_comm::config::Config;
use nd_comm::recorder::{Diagnosis, Dump, FILE_MAX, PREFIX, diagnose};
use nd_topology::{Error, Result, printable};
use serde::Serialize;

use super::{put, put_json};
use crate::say;

pub(super) const EXAMPLES: &str = "Examples:
  nd-topo diagnose
      the files in ND_RECORDER_DIR, or in the system's temporary folder
  nd-topo diagnose /shared/run7
      those of a folder, collected from all hosts
  nd-topo diagnose nd-recorder.*.rank*.json --json -

The exit code is 0 when files were read, whatever they tell, and 1 when none
could be. Files that cannot be read are named and left out.";

/// Bytes of all files together.
const ALL_MAX: u64 = 4 << 30;

#[derive(Debug, ClapArgs)]
pub(super) struct DiagnoseArgs {
    /// Files that ranks wrote, or folders of them
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Only jobs whose name contains this
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
    /// Write JSON to this file (`-` or nothing: standard output) instead of sentences
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Answer {
    unreadable: Vec<Unreadable>,
    diagnoses: Vec<Diagnosis>,
}

#[derive(Serialize)]
struct Unreadable {
    file: String,
    why: String,
}

pub(super) fn run(args: &DiagnoseArgs) -> Result<()> {
    let mut unreadable = Vec::new();
    let mut refuse = |path: &Path, why: String| {
        say::warning(format_args!("{}: {}", printable(&path.display().to_string()), printable(&why)));
        unreadable.push(Unreadable { file: path.display().to_string(), why });
    };
    let given = if args.paths.is_empty() { default_folder()? } else { args.paths.clone() };
    let mut files = Vec::new();
    for path in &given {
        match path.is_dir() {
            true => match recorded(path) {
                Ok(found) if found.is_empty() => {
                    refuse(path, format!("no file {PREFIX}*.json in this folder"))
                }
                Ok(found) => files.extend(found),
                Err(e) => refuse(path, e.to_string()),
            },
            false => files.push(path.clone()),
        }
    }
    files.sort();
    files.dedup();
    let (mut dumps, mut left) = (Vec::new(), ALL_MAX);
    for path in &files {
        match read(path, &mut left) {
            Ok(dump) => dumps.push(dump),
            Err(why) => refuse(path, why),
        }
    }
    if dumps.is_empty() {
        return Err(Error::Invalid(format!(
            "no flight recorder's file could be read ({} tried); a rank that fails writes one to ND_RECORDER_DIR, and names \
             it in a warning",
            files.len()
        )));
    }
    if let Some(job) = &args.job {
        let all = dumps.len();
        dumps.retain(|d| d.job.contains(job.as_str()));
        if dumps.is_empty() {
            return Err(Error::Invalid(format!(
                "none of the {all} files is of a job with {job:?} in its name"
            )));
        }
    }
    let diagnoses = diagnose(&dumps);
    if let Some(path) = &args.json {
        return put_json(path, &Answer { unreadable, diagnoses });
    }
    let paragraphs: Vec<String> = diagnoses.iter().map(paragraph).collect();
    put(None, &paragraphs.join("\n"))
}

/// Where ranks of this environment write.
fn default_folder() -> Result<Vec<PathBuf>> {
    let config = Config::from_env().map_err(|e| Error::Invalid(e.to_string()))?;
    match config.recorder.folder.path() {
        Some(folder) => Ok(vec![folder]),
        None => {
            Err(Error::Invalid("ND_RECORDER_DIR=none: nothing is written; name the files to read".into()))
        }
    }
}

/// The recorders' files of a folder.
fn recorded(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| n.starts_with(PREFIX) && n.ends_with(".json")) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// One file, if it is an ordinary one of a size that makes sense: a device or a pipe might never end.
fn read(path: &Path, left: &mut u64) -> std::result::Result<Dump, String> {
    let metadata = fs::metadata(path).map_err(|e| e.to_string())?;
    if !metadata.is_file() {
        return Err("it is not an ordinary file".into());
    }
    if metadata.len() > FILE_MAX {
        return Err(format!(
            "it has {} bytes, and none that a rank writes has more than {FILE_MAX}",
            metadata.len()
        ));
    }
    if metadata.len() > *left {
        return Err(format!(
            "it is one too many: all files together may have {ALL_MAX} bytes; read fewer at a time"
        ));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| e.to_string())?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    *left = left.saturating_sub(bytes.len() as u64);
    Dump::parse(&bytes)
}

/// A communicator's findings.
fn paragraph(diagnosis: &Diagnosis) -> String {
    let with = diagnosis.ranks_with_files.len();
    let files = match diagnosis.world_size - with.min(diagnosis.world_size) {
        0 => format!("files of all {with} ranks"),
        _ => format!("files of {with} of {} ranks", diagnosis.world_size),
    };
    // Names and errors from files must not steer the terminal.
    let (job, communicator) = (printable(&diagnosis.job), printable(&diagnosis.communicator));
    let mut text = format!("job {job}, communicator {communicator}: {files}\n");
    for finding in &diagnosis.findings {
        text += &format!("  {}\n", printable(&finding.text));
    }
    text
}
