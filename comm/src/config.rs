//! Every setting, filled once: strongest first code, `ND_*` variables, NCCL's names for the same, the file that
//! `ND_CONF_FILE` names (TOML), defaults.
//!
//! ```toml
//! # The keys are the variables' names without ND_, in lower case.
//! timeout = "10m"
//! socket_ifname = "eth"
//! port_range = "20000-20100"
//! ```

mod environment;
mod known;
mod logging;
mod salvaged;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nd_transport::secure::Secret;

pub use environment::Environment;
pub use logging::Logging;
pub use values::{Bad, algorithms, duration, nearest, ports, secret, size};

use crate::cost::Calibration;
use crate::recorder;
use crate::rendezvous::Address;
use crate::schedule::Reduction;
use crate::{Error, Result};
use known::{FOREIGN, KNOWN, Known, OTHERS, SILENT};

/// Rules of `ND_ALGO`, in order.
pub type Algorithms = Vec<Rule>;

/// One rule of `ND_ALGO`: `ring,tree`, `^ring`, `allreduce:ring`, `allreduce@64K-4M:ring`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// About which collective, in lower case; about all.
    pub collective: Option<String>,
    /// About calls of so many bytes.
    pub sizes: RangeInclusive<u64>,
    /// Algorithms by name, in lower case.
    pub names: Vec<String>,
    /// Whether all but these are to choose from, not the first of these that can.
    pub exclude: bool,
}

impl Default for Rule {
    /// About everything, with no names.
    fn default() -> Rule {
        Rule { collective: None, sizes: 0..=u64::MAX, names: Vec::new(), exclude: false }
    }
}

/// Who may join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Auth {
    /// Who knows the secret; without a secret only loopback is used.
    #[default]
    Secret,
    /// Everyone who reaches the port.
    None,
}

/// Every setting.
#[derive(Debug, Clone)]
pub struct Config {
    /// How bytes move; holds `ND_START_TIMEOUT` too.
    pub transport: nd_transport::Config,
    /// `ND_TIMEOUT`: how long a call may wait.
    pub timeout: Duration,
    /// `ND_ALGO`; empty: the cost model chooses. Names are not checked here.
    pub algorithms: Algorithms,
    /// `ND_REDUCTION`.
    pub reduction: Reduction,
    /// What the file that `ND_CALIBRATION` names says.
    pub calibration: Option<Arc<Calibration>>,
    /// `ND_CALIBRATION`.
    pub calibration_file: Option<PathBuf>,
    /// `ND_AUTH`.
    pub auth: Auth,
    /// `ND_SECRET` or the content of `ND_SECRET_FILE`.
    pub secret: Option<Secret>,
    /// `ND_SECRET_FILE`.
    pub secret_file: Option<PathBuf>,
    /// `ND_JOB`.
    pub job: String,
    /// `ND_RENDEZVOUS`: where rank 0 listens, stronger than the launcher's word.
    pub rendezvous: Option<Address>,
    /// `ND_RECORDER_CALLS`, `ND_RECORDER_DIR`, `ND_TRACE`.
    pub recorder: recorder::Settings,
    /// `ND_DEBUG`.
    pub debug: Logging,
    /// What to tell the user, once: names that mean nothing here, misspelt ones.
    pub warnings: Vec<String>,
    sources: BTreeMap<&'static str, Source>,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// The file that `ND_CONF_FILE` names.
    File(PathBuf),
    /// This variable.
    Variable(String),
    /// The program.
    Code,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Variable(name) => f.write_str(name),
            Source::Code => f.write_str("code"),
        }
    }
}

/// One row of the table of settings.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its variable.
    pub name: &'static str,
    /// Its value; secrets read "(set)"; empty: none.
    pub value: String,
    /// Where it came from.
    pub source: Source,
    /// The value if nobody says anything.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: nd_transport::Config::default(),
            timeout: Duration::from_secs(600),
            algorithms: Vec::new(),
            reduction: Reduction::default(),
            calibration: None,
            calibration_file: None,
            auth: Auth::default(),
            secret: None,
            secret_file: None,
            job: String::new(),
            rendezvous: None,
            recorder: recorder::Settings::default(),
            debug: Logging::default(),
            warnings: Vec::new(),
            sources: BTreeMap::new(),
        }
    }
}

impl Config {
    /// From this process's environment, and the file that `ND_CONF_FILE` names.
    pub fn from_env() -> Result<Config> {
        Config::from_environment(&Environment::of_process())
    }

    /// From the given environment, and the file that its `ND_CONF_FILE` names.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting, its value, the problem and the remedy.
    pub fn from_environment(environment: &Environment) -> Result<Config> {
        let mut config = Config::default();
        if let Some(path) = environment.get("ND_CONF_FILE") {
            let text = std::fs::read_to_string(path).map_err(|e| {
                wrong(
                    "ND_CONF_FILE",
                    path,
                    format!("cannot be read: {e}"),
                    "name a TOML file that this user can read",
                )
            })?;
            config.read_toml(&text, path.into())?;
        }
        for known in by_strength() {
            let nccl = known.nccl.and_then(|(name, convert)| {
                let value = environment.get(name)?;
                Some((name, value, convert(value)?))
            });
            match (environment.get(known.name), nccl) {
                (Some(value), nccl) => {
                    if let Some((name, other, _)) = nccl.filter(|(_, _, v)| v != value) {
                        config
                            .warnings
                            .push(format!("{}={value} is stronger than {name}={other}", known.name));
                    }
                    config.set(known, known.name, value, Source::Variable(known.name.into()))?;
                }
                (None, Some((name, _, value))) => {
                    config.set(known, name, &value, Source::Variable(name.into()))?;
                }
                (None, None) => {}
            }
        }
        config.warn_of_unknown(environment);
        Ok(config)
    }

    /// Takes what the TOML text says; stronger than what was there.
    pub(crate) fn read_toml(&mut self, text: &str, path: PathBuf) -> Result<()> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            wrong(
                "ND_CONF_FILE",
                &path.display().to_string(),
                format!("not TOML: {}", e.message()),
                "write lines such as timeout = \"10m\"",
            )
        })?;
        for key in table.keys() {
            if !KNOWN.iter().any(|k| k.key() == *key) {
                let keys: Vec<String> = KNOWN.iter().map(Known::key).collect();
                let hint = nearest(key, keys.iter().map(String::as_str))
                    .map_or("nd-topo env lists all keys".to_owned(), |n| format!("did you mean {n}?"));
                self.warnings.push(format!("{}: unknown key {key}; {hint}", path.display()));
            }
        }
        if table.contains_key("secret") {
            self.warnings.extend(values::open_to_all("ND_CONF_FILE", &path.display().to_string()));
        }
        for known in by_strength() {
            let value = match table.get(&known.key()) {
                None => continue,
                Some(toml::Value::String(s)) => s.clone(),
                Some(value @ (toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_))) => {
                    value.to_string()
                }
                Some(other) => {
                    return Err(wrong(
                        &format!("{} in {}", known.key(), path.display()),
                        other.type_str(),
                        "not a plain value".into(),
                        "write a string, a number or true/false",
                    ));
                }
            };
            let setting = format!("{} in {}", known.key(), path.display());
            self.set(known, &setting, &value, Source::File(path.clone()))?;
        }
        Ok(())
    }

    fn set(&mut self, known: &'static Known, setting: &str, value: &str, source: Source) -> Result<()> {
        (known.set)(self, value).map_err(|bad| {
            wrong(setting, if known.secret { "(hidden)" } else { value }, bad.problem, &bad.remedy)
        })?;
        self.sources.insert(known.name, source);
        Ok(())
    }

    fn warn_of_unknown(&mut self, environment: &Environment) {
        for name in environment.names() {
            if name.starts_with("ND_") && !name.starts_with("ND_TEST_") && !OTHERS.contains(&name) {
                if KNOWN.iter().any(|k| k.name == name) {
                    continue;
                }
                let hint = nearest(name, KNOWN.iter().map(|k| k.name).chain(OTHERS.iter().copied()))
                    .map_or("nd-topo env lists all".to_owned(), |n| format!("did you mean {n}?"));
                self.warnings.push(format!("{name} is not a setting; {hint}"));
            } else if name.starts_with("NCCL_") && !SILENT.contains(&name) {
                if KNOWN.iter().any(|k| k.nccl.is_some_and(|(n, _)| n == name)) {
                    continue;
                }
                let why =
                    FOREIGN.iter().find(|(n, _)| *n == name).map_or("it has no counterpart", |(_, why)| why);
                self.warnings.push(format!("{name} has no effect here: {why}"));
            }
        }
    }

    /// All settings with value, source and meaning.
    pub fn settings(&self) -> Vec<Setting> {
        KNOWN
            .iter()
            .map(|known| Setting {
                name: known.name,
                value: (known.show)(self),
                source: self.sources.get(known.name).cloned().unwrap_or(Source::Default),
                default: known.default,
                meaning: known.meaning,
            })
            .collect()
    }

    /// The value of one setting as text; empty: none, or no such setting.
    pub fn value(&self, name: &str) -> String {
        KNOWN.iter().find(|k| k.name == name).map(|k| (k.show)(self)).unwrap_or_default()
    }

    /// Of ranks that were joined in another way than by a start.
    pub(crate) fn of(
        transport: nd_transport::Config,
        timeout: Duration,
        recorder: recorder::Settings,
    ) -> Config {
        Config { transport, timeout, recorder, ..Config::default() }
    }

    /// `ND_START_TIMEOUT`: how long ranks may take to find each other.
    pub fn start_timeout(&self) -> Duration {
        self.transport.start_timeout
    }

    /// Sets any setting by its variable's name, as if the program had written the value.
    ///
    /// ```
    /// let config = nd_comm::config::Config::default().with("ND_TRANSPORT", "tcp")?.with("ND_TIMEOUT", "30s")?;
    /// assert_eq!(config.timeout.as_secs(), 30);
    /// # Ok::<(), nd_comm::Error>(())
    /// ```
    pub fn with(mut self, name: &str, value: &str) -> Result<Config> {
        let Some(known) = KNOWN.iter().find(|k| k.name == name) else {
            let hint = nearest(name, KNOWN.iter().map(|k| k.name)).unwrap_or("ND_TIMEOUT");
            return Err(wrong(name, value, "not a setting".into(), &format!("did you mean {hint}?")));
        };
        self.set(known, name, value, Source::Code)?;
        Ok(self)
    }

    /// Sets `ND_TIMEOUT`.
    pub fn with_timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self.by_code("ND_TIMEOUT")
    }

    /// Sets `ND_START_TIMEOUT`.
    pub fn with_start_timeout(mut self, timeout: Duration) -> Config {
        self.transport.start_timeout = timeout;
        self.by_code("ND_START_TIMEOUT")
    }

    /// Sets `ND_TRANSPORT`.
    pub fn with_transport(mut self, transport: nd_transport::Choice) -> Config {
        self.transport.transport = transport;
        self.by_code("ND_TRANSPORT")
    }

    /// Sets `ND_REDUCTION`.
    pub fn with_reduction(mut self, reduction: Reduction) -> Config {
        self.reduction = reduction;
        self.by_code("ND_REDUCTION")
    }

    /// Sets `ND_ALGO`.
    pub fn with_algorithms(mut self, algorithms: Algorithms) -> Config {
        self.algorithms = algorithms;
        self.by_code("ND_ALGO")
    }

    /// Sets `ND_SECRET`.
    pub fn with_secret(mut self, secret: Secret) -> Config {
        self.secret = Some(secret);
        self.by_code("ND_SECRET")
    }

    /// Sets `ND_AUTH`.
    pub fn with_auth(mut self, auth: Auth) -> Config {
        self.auth = auth;
        self.by_code("ND_AUTH")
    }

    /// Sets `ND_SOCKET_IFNAME`.
    pub fn with_interfaces(mut self, interfaces: impl Into<String>) -> Config {
        self.transport.interfaces = interfaces.into();
        self.by_code("ND_SOCKET_IFNAME")
    }

    fn by_code(mut self, name: &'static str) -> Config {
        self.sources.insert(name, Source::Code);
        self
    }
}

/// The order in which to set things so that the stronger of two that mean the same comes last.
fn by_strength() -> impl Iterator<Item = &'static Known> {
    let (weak, rest): (Vec<_>, Vec<_>) = KNOWN.iter().partition(|k| k.name == "ND_SECRET_FILE");
    weak.into_iter().chain(rest)
}

fn wrong(setting: &str, value: &str, problem: String, remedy: &str) -> Error {
    Error::Config { setting: setting.into(), value: value.into(), problem, remedy: remedy.into() }
}

fn show_duration(d: Duration) -> String {
    if d.subsec_nanos() != 0 { format!("{}ms", d.as_secs_f64() * 1e3) } else { format!("{}s", d.as_secs()) }
}

fn show_algorithms(algorithms: &Algorithms) -> String {
    let lists: Vec<String> = algorithms
        .iter()
        .map(|rule| {
            let collective = rule.collective.as_deref().unwrap_or_default();
            let size = |bytes: u64| match bytes {
                u64::MAX => String::new(),
                bytes => bytes.to_string(),
            };
            let sizes = match (*rule.sizes.start(), *rule.sizes.end()) {
                (0, u64::MAX) => String::new(),
                (first, last) => format!("@{first}-{}", size(last)),
            };
            let colon = if collective.is_empty() && sizes.is_empty() { "" } else { ":" };
            let not = if rule.exclude { "^" } else { "" };
            format!("{collective}{sizes}{colon}{not}{}", rule.names.join(","))
        })
        .collect();
    lists.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_environment(&pairs.iter().copied().collect())
    }

    #[test]
    fn strongest_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nd.toml");
        std::fs::write(
            &path,
            "timeout = 5\nstart_timeout = \"7s\"\nsocket_ifname = \"ib\"\ncma = true\ntimout = 3\n",
        )
        .unwrap();
        let path = path.to_str().unwrap();
        let config = from(&[
            ("ND_CONF_FILE", path),
            ("ND_START_TIMEOUT", "8s"),
            ("NCCL_SOCKET_IFNAME", "eth"),
            ("NCCL_HOSTID", "x"),
            ("ND_HOSTID", "y"),
        ])
        .unwrap()
        .with_reduction(Reduction::Fast);
        assert_eq!(config.timeout, Duration::from_secs(5));
        assert_eq!(config.start_timeout(), Duration::from_secs(8));
        assert_eq!(config.transport.interfaces, "eth");
        assert_eq!(config.transport.host_id.as_deref(), Some("y"));
        assert!(config.transport.cross_memory);
        let source = |name| config.settings().into_iter().find(|s| s.name == name).unwrap().source;
        assert_eq!(source("ND_TIMEOUT"), Source::File(path.into()));
        assert_eq!(source("ND_SOCKET_IFNAME"), Source::Variable("NCCL_SOCKET_IFNAME".into()));
        assert_eq!(source("ND_REDUCTION"), Source::Code);
        assert_eq!(source("ND_AUTH"), Source::Default);
        assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
        assert!(config.warnings[0].contains("did you mean timeout?"), "{:?}", config.warnings);
        assert!(config.warnings[1].contains("ND_HOSTID=y is stronger than NCCL_HOSTID=x"));
    }

    #[test]
    fn nccl_names() {
        let config = from(&[
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_SOCKET_FAMILY", "AF_INET6"),
            ("NCCL_ALGO", "Ring"),
            ("NCCL_COMM_ID", "10.0.0.1:4000"),
            ("NCCL_PROTO", "LL"),
            ("NCCL_IB_TC", "106"),
            ("NCCL_IB_MERGE_NICS", "0"),
            ("NCCL_IB_GID_INDEX", "-1"),
            ("NCCL_IB_QPS_PER_CONNECTION", "2"),
            ("NCCL_VERSION", "2.30"),
        ])
        .unwrap();
        assert_eq!(config.transport.transport, nd_transport::Choice::Tcp);
        let verbs = &config.transport.verbs;
        assert_eq!((verbs.traffic_class, verbs.gid_index, verbs.rails), (106, None, 1));
        assert_eq!(from(&[("NCCL_IB_MERGE_NICS", "1")]).unwrap().transport.verbs.rails, 4);
        assert_eq!(config.debug, Logging::default());
        assert_eq!(config.transport.family, nd_transport::Family::V6);
        assert_eq!(config.algorithms, vec![Rule { names: vec!["ring".to_owned()], ..Rule::default() }]);
        assert_eq!(config.rendezvous.unwrap().to_string(), "10.0.0.1:4000");
        assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
        assert_eq!(
            from(&[("NCCL_SHM_DISABLE", "0")]).unwrap().transport.transport,
            nd_transport::Choice::Auto
        );
    }

    #[test]
    fn unknown_names_get_the_nearest() {
        let config = from(&[("ND_TIMOUT", "3"), ("ND_TEST_X", "1"), ("ND_ZZZZZZZZZZ", "")]).unwrap();
        assert_eq!(config.warnings.len(), 2);
        assert_eq!(config.warnings[0], "ND_TIMOUT is not a setting; did you mean ND_TIMEOUT?");
    }

    #[test]
    fn wrong_values_name_everything() {
        let e = from(&[("ND_PORT_RANGE", "9-8")]).unwrap_err().to_string();
        assert!(e.starts_with("ND_PORT_RANGE=9-8: the first port is above"), "{e}");
        let e = from(&[("NCCL_SOCKET_FAMILY", "AF_X")]).unwrap_err().to_string();
        assert!(e.starts_with("NCCL_SOCKET_FAMILY=AF_X:"), "{e}");
        let e = from(&[("ND_SECRET_FILE", "/dev/null/x")]).unwrap_err().to_string();
        assert!(e.contains("/dev/null/x") && e.contains("cannot be read"), "{e}");
        let e = from(&[("ND_SECRET", "hunter2")]).unwrap_err().to_string();
        assert!(e.starts_with("ND_SECRET=(hidden): 7 bytes") && !e.contains("hunter2"), "{e}");
        let e = from(&[("ND_CONF_FILE", "/dev/null/x")]).unwrap_err().to_string();
        assert!(e.starts_with("ND_CONF_FILE=/dev/null/x"), "{e}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "it is from the file\n").unwrap();
        let own = "hunter2 and his dog";
        let config = from(&[("ND_SECRET", own), ("ND_SECRET_FILE", path.to_str().unwrap())]).unwrap();
        assert_eq!(config.secret.as_ref().map(|s| s.reveal_hex()), secret(own).ok().map(|s| s.reveal_hex()));
        let shown = format!("{config:?} {:?}", config.settings());
        assert!(!shown.contains("hunter2") && !shown.contains(&config.secret.as_ref().unwrap().reveal_hex()));
        assert!(shown.contains("(set)"));
    }

    #[test]
    fn a_secret_that_every_user_can_read_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (secret, file) = (dir.path().join("secret"), dir.path().join("nd.toml"));
        std::fs::write(&secret, "it is from the file\n").unwrap();
        std::fs::write(&file, "secret = \"it is from the file\"\n").unwrap();
        for (mode, warned) in [(0o644, true), (0o602, true), (0o600, false), (0o640, false)] {
            for (name, path) in [("ND_SECRET_FILE", &secret), ("ND_CONF_FILE", &file)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
                let path = path.to_str().unwrap();
                let warnings = from(&[(name, path)]).unwrap().warnings;
                let parts = [format!("{name}={path}: its mode is 0{mode:o},"), format!("chmod 600 {path}")];
                let told = warnings.iter().any(|w| parts.iter().all(|part| w.contains(part)));
                assert_eq!((told, warnings.len()), (warned, usize::from(warned)), "{mode:o}: {warnings:?}");
            }
        }
    }

    #[test]
    fn every_default_reads_back_as_itself() {
        let default = Config::default();
        for (known, setting) in KNOWN.iter().zip(default.settings()) {
            if known.default.is_empty() {
                assert_eq!(setting.value, "", "{}", known.name);
            } else {
                let mut read = Config::default();
                (known.set)(&mut read, known.default).unwrap();
                assert_eq!((known.show)(&read), setting.value, "{}", known.name);
            }
        }
    }
}
