//! GGUF files, written for tests.

use std::path::Path;

/// A file in the making.
#[derive(Default)]
pub(crate) struct Writer {
    settings: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

/// A setting's value.
pub(crate) enum Setting<'a> {
    Count(u32),
    Number(f32),
    Flag(bool),
    Text(&'a str),
    Texts(&'a [&'a str]),
    Kinds(&'a [i32]),
}

impl Writer {
    /// One more setting.
    pub fn set(mut self, key: &str, value: Setting<'_>) -> Writer {
        let mut bytes = text(key);
        let mut add = |kind: u32, value: &[u8]| {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        };
        let list = |kind: u32, len: usize, all: Vec<u8>| {
            [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes(), &all].concat()
        };
        match value {
            Setting::Count(count) => add(4, &count.to_le_bytes()),
            Setting::Number(number) => add(6, &number.to_le_bytes()),
            Setting::Flag(flag) => add(7, &[flag.into()]),
            Setting::Text(value) => add(8, &text(value)),
            Setting::Texts(all) => {
                add(9, &list(8, all.len(), all.iter().flat_map(|value| text(value)).collect()));
            }
            Setting::Kinds(all) => {
                add(9, &list(5, all.len(), all.iter().flat_map(|kind| kind.to_le_bytes()).collect()));
            }
        }
        self.settings.push(bytes);
        self
    }

    /// One more tensor of ggml's type `kind`.
    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) {
        let shape = shape.iter().rev().map(|&n| n as u64).collect();
        self.tensors.push((name.to_owned(), shape, kind, bytes));
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.settings.len() as u64).to_le_bytes());
        bytes.extend(self.settings.concat());
        let mut data = Vec::new();
        for (name, shape, kind, elements) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            data.resize(data.len().next_multiple_of(32), 0);
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(elements);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        bytes
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}
