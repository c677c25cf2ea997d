//! The ranks' output, line by line, each with its rank in front.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A line without end is passed on in pieces of this size, bytes.
const LINE_MAX: usize = 1 << 20;

/// Which of the launcher's streams a line goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl To {
    /// The stream, and the file that it leads to.
    fn name(self) -> String {
        let (name, number) = match self {
            To::Out => ("standard output", 1),
            To::Err => ("standard error", 2),
        };
        let file = std::fs::read_link(format!("/proc/self/fd/{number}"));
        file.map_or_else(|_| name.into(), |file| format!("{name}, {}", file.display()))
    }
}

/// Threads that pass lines on.
#[derive(Debug)]
pub struct Lines {
    threads: Vec<JoinHandle<()>>,
    done: Sender<()>,
    finished: Receiver<()>,
    lost: Arc<OnceLock<io::Error>>,
}

impl Default for Lines {
    fn default() -> Lines {
        let (done, finished) = mpsc::channel();
        Lines { threads: Vec::new(), done, finished, lost: Arc::default() }
    }
}

impl Lines {
    /// Passes on what `from` says, until it ends.
    pub fn pass(&mut self, rank: usize, from: impl Read + Send + 'static, to: To) -> io::Result<()> {
        let (done, lost) = (self.done.clone(), self.lost.clone());
        let prefix = prefix(rank, to);
        let name = format!("nd-run-{}-{rank}", if to == To::Out { "out" } else { "err" });
        self.threads.push(thread::Builder::new().name(name).stack_size(128 << 10).spawn(move || {
            copy(from, &prefix, &mut |line| {
                // Each line is one write under the stream's lock.
                let written = match to {
                    To::Out => write_line(&mut io::stdout().lock(), line),
                    To::Err => io::stderr().lock().write_all(line),
                };
                match written {
                    Ok(()) => true,
                    // Nobody reads any more: then nobody reads what the rank says, which it is left to notice.
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => false,
                    // The ranks go on.
                    Err(e) => {
                        let _ = lost.set(io::Error::new(e.kind(), format!("{}: {e}", to.name())));
                        true
                    }
                }
            });
            let _ = done.send(());
        })?);
        Ok(())
    }

    /// Waits until all is passed on, but not longer than `patience`: a process that outlived its rank may hold the
    /// stream open.
    ///
    /// # Errors
    /// Why a line could not be written: the first time that this happened.
    pub fn finish(mut self, patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        let patient = || until.saturating_duration_since(Instant::now());
        if self.threads.iter().all(|_| self.finished.recv_timeout(patient()).is_ok()) {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
        match self.lost.get() {
            None => Ok(()),
            Some(e) => Err(io::Error::new(e.kind(), e.to_string())),
        }
    }
}

fn write_line(out: &mut impl Write, line: &[u8]) -> io::Result<()> {
    out.write_all(line)?;
    out.flush()
}

fn prefix(rank: usize, to: To) -> Vec<u8> {
    let terminal = match to {
        To::Out => io::stdout().is_terminal(),
        To::Err => io::stderr().is_terminal(),
    };
    if terminal && std::env::var_os("NO_COLOR").is_none() {
        // The six colours that are readable on dark and light.
        format!("\x1b[{}m[{rank}]\x1b[0m ", 31 + rank % 6).into_bytes()
    } else {
        format!("[{rank}] ").into_bytes()
    }
}

/// Calls `line` with each line, prefix and end of line included, until it wants no more.
fn copy(mut from: impl Read, prefix: &[u8], line: &mut dyn FnMut(&[u8]) -> bool) {
    let mut chunk = vec![0; 16 << 10];
    let mut whole = prefix.to_vec();
    loop {
        let n = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for part in chunk[..n].split_inclusive(|b| *b == b'\n') {
            whole.extend_from_slice(part);
            let ended = part.ends_with(b"\n");
            if ended || whole.len() >= LINE_MAX {
                if !ended {
                    whole.push(b'\n');
                }
                if !line(&whole) {
                    return;
                }
                whole.truncate(prefix.len());
            }
        }
    }
    if whole.len() > prefix.len() {
        whole.push(b'\n');
        let _ = line(&whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        copy(text, b"[7] ", &mut |l| {
            all.push(String::from_utf8_lossy(l).into_owned());
            true
        });
        all
    }

    #[test]
    fn whole_lines_with_their_rank() {
        assert_eq!(lines(b"a\n\nb"), ["[7] a\n", "[7] \n", "[7] b\n"]);
        assert_eq!(lines(b""), Vec::<String>::new());
        let long = vec![b'x'; LINE_MAX + 10];
        assert_eq!(lines(&long).len(), 2);
    }
}
