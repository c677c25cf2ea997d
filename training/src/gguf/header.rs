//! What a GGUF file says before its tensors' numbers.
//!
//! Counts and lengths are believed only as far as the file has bytes for them, so neither a damaged file nor one that was made
//! to do harm takes more memory than a few times its own header.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use candle_core::quantized::GgmlDType;

use crate::digest::digest;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::files;

/// What a file begins with.
const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that are read: 1 had other lengths.
const VERSIONS: [u32; 2] = [2, 3];
/// Longest header that is read, bytes: those of published models have 2 to 20 million.
const LONGEST: u64 = 100_000_000;
/// Elements of all lists: of published models less than a million.
const MOST_ELEMENTS: u64 = 1 << 22;
/// Dimensions of a tensor, as in llama.cpp.
const MOST_DIMENSIONS: u32 = 4;
/// Where tensors begin at multiples of, unless the file says otherwise, and the most that it may say.
const ALIGNMENT: u64 = 32;
const MOST_ALIGNMENT: u64 = 1 << 20;
/// What to do about a file that has too few bytes.
const CUT: &str = "the file is cut short or damaged: copy it again";

/// All but the tensors' numbers.
#[derive(Debug)]
pub(crate) struct Header {
    settings: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
    /// Of its bytes.
    pub digest: u64,
}

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    /// The last dimension's elements lie together.
    pub shape: Vec<usize>,
    pub encoding: Encoding,
    /// Where it begins in the file, in bytes, and how many it has.
    pub start: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Whole(i128),
    Number(f64),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
}

/// Whether a regular file begins as GGUF does.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = files::regular(path).and_then(|()| File::open(path)?.read_exact(&mut magic));
    read.is_ok() && magic == MAGIC
}

impl Header {
    /// Reads a file's.
    ///
    /// # Errors
    /// [`Error::File`] with what is wrong.
    pub fn open(path: &Path) -> Result<Header> {
        let refused = |problem: String| Error::File { path: path.to_owned(), problem };
        let opened = files::regular(path).and_then(|()| File::open(path));
        let file = opened.map_err(|e| refused(format!("cannot be read: {e}; check --init")))?;
        let length = file.metadata().map_err(|e| refused(e.to_string()))?.len();
        Header::read(BufReader::new(file), length).map_err(refused)
    }

    /// Reads it from the beginning of a file of so many bytes.
    ///
    /// # Errors
    /// What is wrong, with numbers and what to do.
    pub fn read(from: impl Read, length: u64) -> Result<Header, String> {
        let mut input = Input { from, length, at: 0, digest: 0, elements: 0 };
        if input.array::<4>("its first word")? != MAGIC {
            return Err("it does not begin with GGUF: it is no GGUF file".into());
        }
        let version = input.u32("its version")?;
        if !VERSIONS.contains(&version) {
            let order = VERSIONS.contains(&version.swap_bytes());
            let what = if order { "big-endian numbers".into() } else { format!("version {version}") };
            return Err(format!(
                "it has {what}, and versions 2 and 3 in little-endian order are read: convert it again"
            ));
        }
        let (tensors, settings) = (input.u64("a count")?, input.u64("a count")?);
        // A setting has a name's length, a type and a value, a tensor a name's length, its dimensions' number, a type and a place.
        let least = settings.checked_mul(13).zip(tensors.checked_mul(24)).and_then(|(a, b)| a.checked_add(b));
        if least.is_none_or(|least| least > input.left()) {
            return Err(format!(
                "it claims {settings} settings and {tensors} tensors and has {length} bytes: {CUT}"
            ));
        }
        let settings = input.settings(settings)?;
        let mut header = Header { settings, tensors: BTreeMap::new(), digest: 0 };
        let alignment = header.count("general.alignment")?.map_or(ALIGNMENT, |count| count as u64);
        if alignment == 0 || alignment > MOST_ALIGNMENT {
            return Err(format!("general.alignment is {alignment}; it is from 1 to {MOST_ALIGNMENT}"));
        }
        let listed = (0..tensors).map(|_| input.tensor()).collect::<Result<Vec<_>, _>>()?;
        let data = input.at.next_multiple_of(alignment);
        for (name, mut tensor) in listed {
            let start = data.checked_add(tensor.start);
            let end = start.and_then(|start| start.checked_add(tensor.bytes));
            let (Some(start), true) = (start, end.is_some_and(|end| end <= length)) else {
                return Err(format!(
                    "{name} has {} bytes from byte {} of the tensors on, and the file has {} for tensors: {CUT}",
                    tensor.bytes,
                    tensor.start,
                    length.saturating_sub(data)
                ));
            };
            tensor.start = start;
            if header.tensors.insert(name.clone(), tensor).is_some() {
                return Err(format!("the tensor {name} is there twice"));
            }
        }
        header.digest = input.digest;
        Ok(header)
    }

    /// A whole number from 0 on, if it is there.
    pub fn count(&self, key: &str) -> Result<Option<usize>, String> {
        let whole = |value: &Value| match value {
            Value::Whole(n) => usize::try_from(*n).ok(),
            _ => None,
        };
        self.get(key, "a count", whole)
    }

    /// A number, if it is there. Those of 32 bits are taken as the shortest decimals that stand for them: 1e-5.
    pub fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let number = |value: &Value| match value {
            Value::Number(n) => Some(*n),
            Value::Whole(n) => Some(*n as f64),
            _ => None,
        };
        self.get(key, "a number", number)
    }

    /// True or false, if it is there.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.get(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A text, if it is there.
    pub fn text(&self, key: &str) -> Result<Option<&str>, String> {
        self.get(key, "a text", as_text)
    }

    /// A list of texts, if it is there.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, String> {
        self.get(key, "a list of texts", |value| match value {
            Value::List(all) => all.iter().map(as_text).collect(),
            _ => None,
        })
    }

    /// A list of whole numbers, if it is there.
    pub fn wholes(&self, key: &str) -> Result<Option<Vec<i128>>, String> {
        let whole = |value: &Value| if let Value::Whole(n) = value { Some(*n) } else { None };
        self.get(key, "a list of whole numbers", |value| match value {
            Value::List(all) => all.iter().map(whole).collect(),
            _ => None,
        })
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        of: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.settings.get(key) else { return Ok(None) };
        of(value).map(Some).ok_or_else(|| format!("{key} is not {what}: convert the model again"))
    }
}

fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// A file's bytes, one after the other.
struct Input<R> {
    from: R,
    /// Of the file.
    length: u64,
    /// Bytes that were read, and a digest of them.
    at: u64,
    digest: u64,
    /// Of lists.
    elements: u64,
}

impl<R: Read> Input<R> {
    /// Bytes that may still be read.
    fn left(&self) -> u64 {
        self.length.min(LONGEST).saturating_sub(self.at)
    }

    fn bytes(&mut self, out: &mut [u8], what: &str) -> Result<(), String> {
        if out.len() as u64 > self.left() {
            return Err(self.ends(what));
        }
        self.from.read_exact(out).map_err(|e| format!("{what} cannot be read at byte {}: {e}", self.at))?;
        self.at += out.len() as u64;
        self.digest = digest(self.digest, out);
        Ok(())
    }

    fn ends(&self, what: &str) -> String {
        let (at, length) = (self.at, self.length);
        if length > LONGEST {
            return format!(
                "{what} at byte {at} ends beyond the first {LONGEST} bytes, and no header is longer: {CUT}"
            );
        }
        format!("{what} at byte {at} ends beyond the file's {length} bytes: {CUT}")
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.bytes(&mut bytes, what)?;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> Result<String, String> {
        let len = self.u64(what)?;
        if len > self.left() {
            return Err(format!("{what} of {len} bytes: {}", self.ends(what)));
        }
        let mut bytes = vec![0; len as usize];
        self.bytes(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| format!("{what} before byte {} is not UTF-8: {CUT}", self.at))
    }

    fn settings(&mut self, count: u64) -> Result<BTreeMap<String, Value>, String> {
        let mut settings = BTreeMap::new();
        for _ in 0..count {
            let key = self.text("a setting's name")?;
            let kind = self.u32(&key)?;
            let value = match kind {
                LIST => self.list(&key)?,
                kind => self.value(kind, &key)?,
            };
            if settings.contains_key(&key) {
                return Err(format!("{key} is there twice"));
            }
            settings.insert(key, value);
        }
        Ok(settings)
    }

    fn list(&mut self, key: &str) -> Result<Value, String> {
        let (kind, len) = (self.u32(key)?, self.u64(key)?);
        self.elements = self.elements.saturating_add(len);
        // Each has a byte at least.
        if len > self.left() || self.elements > MOST_ELEMENTS {
            return Err(format!(
                "{key} claims a list of {len}; the file has {} bytes left, and all lists have {MOST_ELEMENTS} elements at most: \
                 {CUT}",
                self.left()
            ));
        }
        (0..len).map(|_| self.value(kind, key)).collect::<Result<_, _>>().map(Value::List)
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Whole(self.array(key).map(u8::from_le_bytes)?.into()),
            1 => Value::Whole(self.array(key).map(i8::from_le_bytes)?.into()),
            2 => Value::Whole(self.array(key).map(u16::from_le_bytes)?.into()),
            3 => Value::Whole(self.array(key).map(i16::from_le_bytes)?.into()),
            4 => Value::Whole(self.u32(key)?.into()),
            5 => Value::Whole(self.array(key).map(i32::from_le_bytes)?.into()),
            6 => Value::Number(shortest(self.array(key).map(f32::from_le_bytes)?)),
            7 => Value::Flag(self.array::<1>(key)? != [0]),
            8 => Value::Text(self.text(key)?),
            10 => Value::Whole(self.u64(key)?.into()),
            11 => Value::Whole(self.array(key).map(i64::from_le_bytes)?.into()),
            12 => Value::Number(self.array(key).map(f64::from_le_bytes)?),
            LIST => {
                return Err(format!(
                    "{key} is a list of lists, of which none is known: convert the model again"
                ));
            }
            kind => return Err(format!("{key} is of type {kind}, which is none of GGUF's: {CUT}")),
        })
    }

    /// A tensor, of which `start` is counted from the first one.
    fn tensor(&mut self) -> Result<(String, Tensor), String> {
        let name = self.text("a tensor's name")?;
        let dimensions = self.u32(&name)?;
        if dimensions > MOST_DIMENSIONS {
            return Err(format!(
                "{name} has {dimensions} dimensions; a tensor has {MOST_DIMENSIONS} at most: {CUT}"
            ));
        }
        let mut shape = (0..dimensions).map(|_| self.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let (kind, start) = (self.u32(&name)?, self.u64(&name)?);
        let encoding = encoding(kind).ok_or_else(|| {
            format!("{name} is of type {kind}, which is not read: convert it to F16 or Q8_0, for example")
        })?;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(encoding.block() as u64) {
            return Err(format!(
                "{name} has rows of {row} elements, and {encoding} has blocks of {}: {CUT}",
                encoding.block()
            ));
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let bytes = elements.and_then(|n| (n / encoding.block() as u64).checked_mul(encoding.bytes() as u64));
        let Some(bytes) = bytes.filter(|bytes| *bytes <= self.length) else {
            return Err(format!(
                "{name} is {shape:?} of {encoding}, more than the file's {} bytes: {CUT}",
                self.length
            ));
        };
        let shape = shape.into_iter().map(|n| n as usize).collect();
        Ok((name, Tensor { shape, encoding, start, bytes }))
    }
}

/// The type of a list.
const LIST: u32 = 9;

/// A number of 32 bits as its shortest decimal.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(number.into())
}

/// What ggml's number of a type means, of those that can be read.
fn encoding(kind: u32) -> Option<Encoding> {
    use GgmlDType::*;
    Some(match kind {
        0 => Encoding::F32,
        1 => Encoding::F16,
        30 => Encoding::BF16,
        2 => Encoding::Blocks(Q4_0),
        3 => Encoding::Blocks(Q4_1),
        6 => Encoding::Blocks(Q5_0),
        7 => Encoding::Blocks(Q5_1),
        8 => Encoding::Blocks(Q8_0),
        10 => Encoding::Blocks(Q2K),
        11 => Encoding::Blocks(Q3K),
        12 => Encoding::Blocks(Q4K),
        13 => Encoding::Blocks(Q5K),
        14 => Encoding::Blocks(Q6K),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Setting, Writer};
    use super::*;

    fn read(bytes: &[u8]) -> Result<Header, String> {
        Header::read(bytes, bytes.len() as u64)
    }

    fn small() -> Writer {
        let mut writer = Writer::default()
            .set("name", Setting::Text("a"))
            .set("count", Setting::Count(7))
            .set("number", Setting::Number(1e-5))
            .set("flag", Setting::Flag(true))
            .set("texts", Setting::Texts(&["b", ""]))
            .set("kinds", Setting::Kinds(&[-1, 3]));
        writer.tensor("w", &[2, 32], 8, vec![1; 68]);
        writer.tensor("v", &[3], 0, vec![2; 12]);
        writer
    }

    #[test]
    fn settings_and_tensors_are_found_where_they_are() {
        let bytes = small().bytes();
        let header = read(&bytes).unwrap();
        assert_eq!((header.text("name"), header.count("count")), (Ok(Some("a")), Ok(Some(7))));
        assert_eq!((header.number("number"), header.flag("flag")), (Ok(Some(1e-5)), Ok(Some(true))));
        assert_eq!(header.texts("texts"), Ok(Some(vec!["b", ""])));
        assert_eq!(header.wholes("kinds"), Ok(Some(vec![-1, 3])));
        assert_eq!(header.count("absent"), Ok(None));
        assert!(header.count("name").unwrap_err().starts_with("name is not a count"));
        let w = &header.tensors["w"];
        assert_eq!((&*w.shape, w.encoding, w.bytes), (&[2, 32][..], Encoding::Blocks(GgmlDType::Q8_0), 68));
        for (name, value) in [("w", 1), ("v", 2)] {
            let Tensor { start, bytes: len, .. } = header.tensors[name];
            assert!(
                bytes[start as usize..(start + len) as usize].iter().all(|byte| *byte == value),
                "{name}"
            );
        }
    }

    /// Wherever a file ends, and whatever one byte of it is, there is a header or one sentence.
    #[test]
    fn files_that_are_cut_short_are_refused_wherever_they_end() {
        let bytes = small().bytes();
        for length in 0..bytes.len() {
            let error = read(&bytes[..length]).unwrap_err();
            assert!(error.contains("copy it again"), "{length}: {error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_or_mean_something_else(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = small().bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(header) = read(&bytes) {
                let length = bytes.len() as u64;
                prop_assert!(header.tensors.values().all(|tensor| tensor.start + tensor.bytes <= length));
            }
        }
    }

    #[test]
    fn numbers_beyond_the_file_are_refused_before_anything_is_made() {
        let words = |version: u32, tensors: u64, settings: u64, rest: &[u8]| {
            let counts = [tensors.to_le_bytes(), settings.to_le_bytes()].concat();
            read(&[b"GGUF", &version.to_le_bytes()[..], &counts, rest].concat()).unwrap_err()
        };
        let huge = u64::MAX.to_le_bytes();
        let key = [&1u64.to_le_bytes()[..], b"k"].concat();
        let with = |kind: u32, rest: &[u8]| [&key, &kind.to_le_bytes()[..], rest].concat();
        for (error, part) in [
            (words(3, u64::MAX, 0, &[]), "claims 0 settings and 18446744073709551615 tensors"),
            (words(3, 0, u64::MAX, &[]), "claims 18446744073709551615 settings"),
            (words(3, 0, 1, &[huge, [0; 8]].concat()), "a setting's name of 18446744073709551615 bytes"),
            (words(3, 0, 1, &with(8, &huge)), "k of 18446744073709551615 bytes"),
            (
                words(3, 0, 1, &with(9, &[&4u32.to_le_bytes()[..], &huge].concat())),
                "k claims a list of 18446744073709551615",
            ),
            (
                words(3, 0, 1, &with(9, &[&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 8]].concat())),
                "list of lists",
            ),
            (words(3, 0, 1, &with(77, &huge)), "k is of type 77"),
            (words(1, 0, 0, &[]), "version 1, and versions 2 and 3"),
            (words(3u32.swap_bytes(), 0, 0, &[]), "big-endian"),
            (read(b"PK\x03\x04").unwrap_err(), "does not begin with GGUF"),
        ] {
            assert!(error.contains(part), "{error}");
        }
        let tensor = |shape: &[usize], kind: u32| {
            let mut writer = Writer::default();
            writer.tensor("w", shape, kind, vec![0; 64]);
            read(&writer.bytes()).unwrap_err()
        };
        for (error, part) in [
            (tensor(&[usize::MAX, usize::MAX], 0), "more than the file's"),
            (tensor(&[1 << 40], 0), "w is [1099511627776] of F32, more than"),
            (tensor(&[33], 8), "w has rows of 33 elements, and Q8_0 has blocks of 32"),
            (tensor(&[1; 5], 0), "w has 5 dimensions"),
            (tensor(&[4], 99), "w is of type 99"),
            (tensor(&[17], 0), "w has 68 bytes from byte 0 of the tensors on, and the file has 64"),
        ] {
            assert!(error.contains(part), "{error}");
        }
        for alignment in [0, 1 << 30] {
            let writer = Writer::default().set("general.alignment", Setting::Count(alignment));
            assert!(
                read(&writer.bytes()).unwrap_err().contains(&format!("general.alignment is {alignment}"))
            );
        }
        let twice = Writer::default().set("k", Setting::Count(1)).set("k", Setting::Count(1));
        assert_eq!(read(&twice.bytes()).unwrap_err(), "k is there twice");
        let mut twice = small();
        twice.tensor("w", &[1], 0, vec![0; 4]);
        assert_eq!(read(&twice.bytes()).unwrap_err(), "the tensor w is there twice");
    }
}
