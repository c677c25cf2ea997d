//! The environment as a value, so that nothing else reads the process's own.

use std::collections::BTreeMap;

/// A set of environment variables. Empty values count as unset, as every launcher treats them.
#[derive(Clone, Default)]
pub struct Environment {
    values: BTreeMap<String, String>,
    launcher_process: Option<String>,
    user: u32,
}

impl Environment {
    /// This process's. Variables that are not UTF-8 are left out.
    pub fn of_process() -> Environment {
        let values = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Environment { values, launcher_process: None, user: rustix::process::geteuid().as_raw() }
    }

    /// Asks `lookup` for each of `names`.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>, names: &[&str]) -> Environment {
        let values = names.iter().filter_map(|name| Some((name.to_string(), lookup(name)?))).collect();
        Environment { values, ..Environment::default() }
    }

    /// Adds what identifies the process that started all ranks of this host ("pid@start"): for launchers whose
    /// variables do not name the job.
    pub fn with_launcher_process(mut self, identity: Option<String>) -> Environment {
        self.launcher_process = identity;
        self
    }

    /// See [`Environment::with_launcher_process`].
    pub fn launcher_process(&self) -> Option<&str> {
        self.launcher_process.as_deref()
    }

    /// The effective user id.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// A variable's value, without surrounding blanks.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Environment {
        let values = pairs.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        Environment { values, ..Environment::default() }
    }
}

impl std::fmt::Debug for Environment {
    /// Only names: values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
