//! Ranks on other hosts (`--hosts`): each host runs `nd-run`, started through a remote shell.
//!
//! What the remote shell runs comes by its standard input, so that the job's secret is on no command line. It stays open:
//! the ranks there end when it ends.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nd_comm::config::Config;
use nd_transport::secure::Secret;

use super::error::Error;
use super::hosts_file::{self, Host};

/// Where rank 0 listens is drawn from these ports, which systems leave to programs.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// How often the shells are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// `word` as the shell reads it back.
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

/// Runs this program's command line on all hosts of the file; whether all elements were right.
pub fn run(file: &Path, remote_shell: &str, ranks: Option<usize>, config: &Config) -> Result<bool, Error> {
    let shown = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Error::Usage(format!("--hosts {shown}: {e}; name a file with one host a line")))?;
    let hosts = hosts_file::parse(&text, &shown, ranks.unwrap_or(1)).map_err(Error::Usage)?;
    let machine = |what: String| move |e: std::io::Error| Error::Machine(format!("{what}: {e}"));
    let program = std::env::current_exe().map_err(machine("cannot find this program".into()))?;
    let launcher = program.with_file_name("nd-run");
    let folder = std::env::current_dir().map_err(machine("cannot find this folder".into()))?;
    let secret = config.secret.clone().unwrap_or_else(Secret::random).reveal_hex();
    let port = PORTS.start + rand::random_range(0..PORTS.end - PORTS.start);
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|a| quoted(&a)).collect();
    let script = |node: usize| {
        let mut script = format!("cd {} || exit 1\nexport ND_SECRET={secret}\n", quoted(folder.as_os_str()));
        for (name, value) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ours = text.starts_with("ND_") || text.starts_with("NCCL_");
            if ours && !text.starts_with("ND_SECRET") {
                script += &format!("export {text}={}\n", quoted(&value));
            }
        }
        script
            + &format!(
                "exec {} -n {} --nnodes {} --node-rank {node} --rdzv {}:{port} --no-prefix --end-with-input -- {} {}\n",
                quoted(launcher.as_os_str()),
                hosts[node].slots,
                hosts.len(),
                hosts[0].name,
                quoted(program.as_os_str()),
                arguments.join(" ")
            )
    };
    let mut shell = remote_shell.split_whitespace();
    let Some(name) = shell.next() else {
        return Err(Error::Usage("--rsh: empty; name a command that takes HOST COMMAND, such as ssh".into()));
    };
    let shell: Vec<_> = shell.collect();
    let mut children = Children(Vec::new());
    for (node, host) in hosts.iter().enumerate() {
        let start = || -> std::io::Result<Child> {
            let mut command = Command::new(name);
            command.args(&shell).arg(&host.name).args(["sh", "-s"]).stdin(Stdio::piped());
            let mut child = command.spawn()?;
            // Stays open: when this process ends, however it does, so does the input of nd-run there.
            if let Some(input) = &mut child.stdin {
                input.write_all(script(node).as_bytes())?;
            }
            Ok(child)
        };
        children.0.push(start().map_err(machine(format!("cannot reach {} through {name}", host.name)))?);
    }
    children.wait(&hosts)
}

/// The remote shells; ended when dropped.
struct Children(Vec<Child>);

impl Children {
    fn wait(&mut self, hosts: &[Host]) -> Result<bool, Error> {
        let mut running = vec![true; self.0.len()];
        while running.contains(&true) {
            for (i, child) in self.0.iter_mut().enumerate() {
                if !running[i] {
                    continue;
                }
                let ended = child.try_wait();
                match ended.map_err(|e| Error::Machine(format!("cannot wait for {}: {e}", hosts[i].name)))? {
                    None => {}
                    Some(status) if status.success() => running[i] = false,
                    Some(status) => {
                        return Err(Error::Machine(format!(
                            "{}: {status}; look at what it said above, and try the remote shell by hand",
                            hosts[i].name
                        )));
                    }
                }
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Those that have ended are not running any more.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let out = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(OsStr::new("a 'b' $c `d`")))])
            .output()
            .unwrap();
        assert_eq!(out.stdout, b"a 'b' $c `d`");
    }
}
