//! Settings of which some cannot be used.

use super::{Config, Environment};
use crate::Error;

impl Config {
    /// From the given environment without the variables that cannot be used, and what is wrong with those; also what is
    /// wrong only with all of them together.
    pub fn salvaged(environment: &Environment) -> (Config, Vec<Error>) {
        if let Ok(config) = Config::from_environment(environment) {
            return (config, Vec::new());
        }
        let only = |names: &[&str]| -> Environment {
            names.iter().filter_map(|&n| Some((n, environment.get(n)?))).collect()
        };
        let (mut good, mut wrong): (Vec<&str>, _) = (environment.names().collect(), Vec::new());
        good.retain(|&name| Config::from_environment(&only(&[name])).map_err(|e| wrong.push(e)).is_ok());
        let config = Config::from_environment(&only(&good)).unwrap_or_else(|e| {
            wrong.push(e);
            Config::default()
        });
        (config, wrong)
    }
}
