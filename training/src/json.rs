//! JSON that says nothing twice. *Pure.*

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Looks whether a JSON text is well formed and has in no object a name twice, of which readers take the one or the other.
///
/// # Errors
/// What is wrong, with line and column.
pub fn check(text: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<Unique>(text).map(drop)
}

/// Any value, none of which is kept.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Unique, D::Error> {
        from.deserialize_any(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format!("{name} is there twice")));
            }
            map.next_value::<Unique>()?;
            names.insert(name);
        }
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Unique, A::Error> {
        while all.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_twice_is_found_at_any_depth() {
        check(br#"{"a": [1, -2, 3.5, null, true, "x", {"a": {}, "b": []}], "b": 1e99}"#).unwrap();
        for text in
            [r#"{"a": 1, "b": 2, "a": 1}"#, r#"[{}, {"b": {"a": 1, "a": 2}}]"#, r#"{"a": 1, "\u0061": 1}"#]
        {
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("a is there twice at line 1"), "{text}: {error}");
        }
        assert!(check(b"{").is_err() && check(b"{} {}").is_err() && check(b"\xff").is_err());
    }
}
