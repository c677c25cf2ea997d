//! A published model for tests that need a real one.

use std::path::{Path, PathBuf};

use crate::{Need, skip};

/// SmolLM2-135M-Instruct as a GGUF file, which `scripts/setup test` fetches; says that the test is skipped where it is not.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join("target/models/smollm2-135m.gguf");
    if path.is_file() {
        return Some(path);
    }
    skip(test, Need::Model);
    None
}
