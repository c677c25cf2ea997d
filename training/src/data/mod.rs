//! Tokens, and which rank sees which of them at which step.
