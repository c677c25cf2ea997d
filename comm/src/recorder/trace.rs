//! Calls as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing: the array form of the Trace Event Format,
//! complete events, one process a rank and one thread a communicator.
//!
//! Events are collected in memory of a fixed size and appended when that is full, with the first call after a tenth of
//! a second, while a call waits, on failure and at the end. The format lets the closing bracket be missing, so what a
//! killed program leaves can be read too.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::json;

use super::file::{Call, Outcome};
use super::identity::Identity;

/// Bytes of events that are held back at most, beside the one that is just written.
const BUFFER: usize = 64 << 10;
/// For how long.
const HELD: Duration = Duration::from_millis(100);
const END: &[u8] = b"\n]\n";
/// Times in a file count from the last multiple of 28 days, in UTC: seconds. So files of one host lie on one line, and a
/// float, which viewers read times as, still tells nanoseconds apart.
const EPOCH: u64 = 28 * 86_400;

/// Where traces go: a path in which `%r` stands for the rank, `%p` for the process, `%h` for the host, `%%` for a percent
/// sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// From text.
    ///
    /// # Errors
    /// When it is the same for all ranks or has another `%`: what is wrong, and what to write.
    pub fn new(text: &str) -> Result<Pattern, (String, String)> {
        let rest = text.replace("%%", "");
        let codes: Vec<Option<char>> = rest.split('%').skip(1).map(|part| part.chars().next()).collect();
        if let Some(code) = codes.iter().find(|c| !matches!(c, Some('r' | 'p' | 'h'))) {
            let code = code.map(String::from).unwrap_or_default();
            return Err((
                format!("%{code} stands for nothing"),
                "write %r for the rank, %p for the process, %h for the host, %% for a percent sign".into(),
            ));
        }
        if !codes.iter().any(|c| matches!(c, Some('r' | 'p'))) {
            return Err((
                "every rank would write the same file".into(),
                "put %r (the rank) or %p (the process) into the name, such as trace-%r.json".into(),
            ));
        }
        Ok(Pattern(text.to_owned()))
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn path(&self, rank: usize, host: &str) -> PathBuf {
        let mut path = String::new();
        let mut characters = self.0.chars();
        while let Some(c) = characters.next() {
            match if c == '%' { characters.next() } else { None } {
                Some('r') => path += &rank.to_string(),
                Some('p') => path += &std::process::id().to_string(),
                Some('h') => path += &host.replace('/', "_"),
                Some(other) => path.push(other),
                None => path.push(c),
            }
        }
        path.into()
    }
}

/// The events of one communicator and rank.
#[derive(Debug)]
pub(super) struct Track {
    file: Arc<TraceFile>,
    process: usize,
    thread: u32,
}

impl Track {
    /// In the file that the pattern names for this rank. Whatever goes wrong is a warning: a trace is an aid.
    pub fn open(pattern: &Pattern, identity: &Identity) -> Option<Track> {
        let own = identity.own();
        let path = pattern.path(own.world_rank, &own.host);
        let file = match TraceFile::at(&path) {
            Ok(file) => file,
            Err(e) => {
                tracing::warn!("no trace is written: ND_TRACE={}: {e}", path.display());
                return None;
            }
        };
        let thread = file.threads.fetch_add(1, Ordering::Relaxed);
        let track = Track { process: own.world_rank, thread, file };
        let process = format!("rank {} ({}, pid {})", own.world_rank, own.host, own.pid);
        let name = |what: &str, name: &str| {
            let event =
                json!({"name": what, "ph": "M", "pid": track.process, "tid": thread, "args": {"name": name}});
            // At once, so that there is a file that can be read.
            track.file.append(|out| write!(out, "{event}"), true);
        };
        name("process_name", &process);
        name("thread_name", &identity.communicator);
        Some(track)
    }

    /// Writes what was held back.
    pub fn flush(&self) {
        let mut output = self.file.output.lock().unwrap_or_else(PoisonError::into_inner);
        if !output.broken && !output.buffer.is_empty() {
            output.write();
        }
    }

    /// Writes a call; `made` is when its communicator was made and `until` when it ended, ns.
    pub fn call(&self, call: &Call, made_unix_ns: u64, until_ns: u64) {
        let made = made_unix_ns % (EPOCH * 1_000_000_000);
        let (start, length) = (Us(made + call.entered_ns), Us(until_ns.saturating_sub(call.entered_ns)));
        let failed = call.outcome == Outcome::Failed;
        self.file.append(
            |out| {
                // No text from outside: names of collectives, types, operations and algorithms.
                write!(
                    out,
                    "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{start},\"dur\":{length},\
                     \"args\":{{\"call\":{},\"count\":{},\"bytes\":{}",
                    call.collective,
                    if failed { "failed" } else { "call" },
                    self.process,
                    self.thread,
                    call.call,
                    call.count,
                    call.bytes
                )?;
                for (name, value) in [("type", &call.data_type), ("op", &call.op), ("algorithm", &call.algorithm)] {
                    if let Some(value) = value {
                        write!(out, ",\"{name}\":\"{value}\"")?;
                    }
                }
                for (name, value) in [("root", call.root), ("peer", call.peer)] {
                    if let Some(value) = value {
                        write!(out, ",\"{name}\":{value}")?;
                    }
                }
                out.write_all(if failed { b",\"outcome\":\"failed\"}}" } else { b"}}" })
            },
            failed,
        );
    }
}

/// Nanoseconds as microseconds with three decimals.
struct Us(u64);

impl std::fmt::Display for Us {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A file to which all tracks of this process with its name go.
#[derive(Debug)]
struct TraceFile {
    threads: AtomicU32,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    written: Instant,
    /// Nothing more is written.
    broken: bool,
}

/// What this process has written, so that a later communicator goes on in the same file.
static FILES: Mutex<Vec<(PathBuf, u32, Weak<TraceFile>)>> = Mutex::new(Vec::new());

impl TraceFile {
    fn at(path: &Path) -> io::Result<Arc<TraceFile>> {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let me = std::process::id();
        let known = files.iter().position(|(p, pid, _)| p == path && *pid == me);
        if let Some(file) = known.and_then(|i| files[i].2.upgrade()) {
            return Ok(file);
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(known.is_none());
        let mut file = options.open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        let mut buffer = Vec::with_capacity(BUFFER + 4096);
        if end > END.len() as u64 {
            // The closing bracket goes, and events go on.
            file.set_len(end - END.len() as u64)?;
            file.seek(SeekFrom::End(0))?;
        } else {
            buffer.push(b'[');
        }
        let output = Output { path: path.to_owned(), file, buffer, written: Instant::now(), broken: false };
        // Threads of a file that is taken up again get new numbers.
        let threads = AtomicU32::new(known.map_or(0, |_| end.min(1 << 30) as u32));
        let file = Arc::new(TraceFile { threads, output: Mutex::new(output) });
        match known {
            Some(i) => files[i].2 = Arc::downgrade(&file),
            None => files.push((path.to_owned(), me, Arc::downgrade(&file))),
        }
        Ok(file)
    }

    fn append(&self, event: impl FnOnce(&mut Vec<u8>) -> io::Result<()>, at_once: bool) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.broken {
            return;
        }
        let first = output.buffer == b"[";
        output.buffer.extend_from_slice(if first { b"\n" } else { b",\n" });
        let _ = event(&mut output.buffer);
        if at_once || output.buffer.len() >= BUFFER || output.written.elapsed() >= HELD {
            output.write();
        }
    }
}

impl Output {
    fn write(&mut self) {
        if let Err(e) = self.file.write_all(&self.buffer) {
            tracing::warn!("the trace ends here: {}: {e}", self.path.display());
            self.broken = true;
        }
        self.buffer.clear();
        self.written = Instant::now();
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let output = self.output.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !output.broken {
            output.buffer.extend_from_slice(END);
            output.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let path = |text: &str| Pattern::new(text).unwrap().path(3, "a/b");
        assert_eq!(path("/x/t-%r.json"), Path::new("/x/t-3.json"));
        assert_eq!(path("%h.%%.%p"), PathBuf::from(format!("a_b.%.{}", std::process::id())));
        for (wrong, say) in
            [("t.json", "same file"), ("%h", "same file"), ("%r%x", "%x stands"), ("%r%", "% stands")]
        {
            assert!(Pattern::new(wrong).unwrap_err().0.contains(say), "{wrong}");
        }
    }
}
