//! XML to a small tree, for input that nobody vouches for.
//!
//! Well-formed XML of any layout is read: prolog, doctype, comments, tabs, CDATA. What an attacker would use is an
//! error with line and column: entities beyond the five of XML, deep nesting, counts and lengths past the limits
//! below. Memory is bounded by the input's length times a small factor.

use quick_xml::Reader;
use quick_xml::escape::EscapeError;
use quick_xml::events::{BytesStart, Event};

use crate::model::{Fault, Part};
use crate::{Error, Result};

/// The longest text that is looked at, in bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// The most elements.
pub const MAX_ELEMENTS: usize = 200_000;
/// The deepest nesting.
pub const MAX_DEPTH: usize = 64;
/// The most attributes of one element.
pub const MAX_ATTRIBUTES: usize = 64;
/// The longest attribute value, in bytes.
pub const MAX_VALUE: usize = 16 << 10;

/// An element with its attributes, children and text.
#[derive(Debug, Clone, Default)]
pub struct Element {
    /// Tag.
    pub name: String,
    /// Attributes in order.
    pub attributes: Vec<(String, String)>,
    /// Elements below it, in order.
    pub children: Vec<Element>,
    /// Text below it, in one piece.
    pub text: String,
    /// Byte offset of its tag in the input.
    pub offset: usize,
}

impl Element {
    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// Children with a tag.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |c| c.name == name)
    }
}

/// The text with its format's name: makes errors that point into it.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    /// The input.
    pub text: &'a str,
    /// Such as `NCCL topology XML`.
    pub format: &'static str,
}

impl Document<'_> {
    /// An error at a byte offset.
    pub fn error(&self, offset: usize, message: impl Into<String>) -> Error {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |p| p + 1) + 1;
        Error::Parse { format: self.format, line, column, message: message.into() }
    }

    /// An error at an element.
    pub fn at(&self, element: &Element, message: impl Into<String>) -> Error {
        self.error(element.offset, message)
    }

    /// An error in a part of the system that was read, whose place the reader knows by its offset; with the line of
    /// the part that it clashes with.
    pub(crate) fn fault(&self, fault: Fault, offset: impl Fn(Part) -> Option<usize>) -> Error {
        let at = offset(fault.part).unwrap_or(0);
        let message = match fault.first.and_then(offset) {
            Some(first) => {
                let line = self.text.bytes().take(first).filter(|&b| b == b'\n').count() + 1;
                format!("{} (the first is in line {line})", fault.message)
            }
            None => fault.message,
        };
        self.error(at, message)
    }

    /// The outermost element.
    pub fn parse(&self) -> Result<Element> {
        if self.text.len() > MAX_BYTES {
            return Err(self.error(
                0,
                format!(
                    "the file has {} bytes, the limit is {MAX_BYTES}; no machine needs that many",
                    self.text.len()
                ),
            ));
        }
        if let Some((offset, c)) = self.text.char_indices().find(|&(_, c)| !legal(c)) {
            return Err(
                self.error(offset, format!("the character {} is not allowed in XML", c.escape_default()))
            );
        }
        let mut reader = Reader::from_str(self.text);
        let mut stack: Vec<Element> = Vec::new();
        let mut root: Option<Element> = None;
        let mut elements = 0;
        loop {
            let offset = reader.buffer_position() as usize;
            let event = reader.read_event().map_err(|e| {
                self.error(reader.error_position() as usize, format!("not well-formed XML: {e}"))
            })?;
            match event {
                Event::Start(tag) => {
                    elements += 1;
                    if root.is_some() {
                        return Err(self.error(offset, "a second outermost element; XML has one"));
                    }
                    if stack.len() >= MAX_DEPTH {
                        return Err(self.error(offset, format!("nested deeper than {MAX_DEPTH} elements")));
                    }
                    stack.push(self.element(&tag, offset, elements)?);
                }
                Event::Empty(tag) => {
                    elements += 1;
                    let element = self.element(&tag, offset, elements)?;
                    match stack.last_mut() {
                        Some(parent) => parent.children.push(element),
                        None if root.is_none() => root = Some(element),
                        None => return Err(self.error(offset, "a second outermost element; XML has one")),
                    }
                }
                Event::End(_) => {
                    let element =
                        stack.pop().ok_or_else(|| self.error(offset, "an end tag without a start tag"))?;
                    match stack.last_mut() {
                        Some(parent) => parent.children.push(element),
                        None => root = Some(element),
                    }
                }
                Event::Text(text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    self.text_into(&mut stack, &text, offset)?;
                }
                Event::CData(text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    self.text_into(&mut stack, &text, offset)?;
                }
                Event::GeneralRef(name) => {
                    let known = match &*name {
                        b"lt" => "<",
                        b"gt" => ">",
                        b"amp" => "&",
                        b"quot" => "\"",
                        b"apos" => "'",
                        other => {
                            let name = String::from_utf8_lossy(&other[..other.len().min(40)]);
                            return Err(self.error(
                                offset,
                                format!("entity &{name}; is not expanded; only the five of XML are"),
                            ));
                        }
                    };
                    self.text_into(&mut stack, known, offset)?;
                }
                Event::Eof => break,
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
        if let Some(open) = stack.last() {
            return Err(self.error(self.text.len(), format!("the file ends inside <{}>", open.name)));
        }
        root.ok_or_else(|| self.error(self.text.len(), "no element in the file"))
    }

    fn text_into(&self, stack: &mut [Element], text: &str, offset: usize) -> Result<()> {
        match stack.last_mut() {
            Some(element) => element.text.push_str(text),
            None if text.trim_matches('\u{feff}').trim().is_empty() => {}
            None => return Err(self.error(offset, "text outside the outermost element: this is no XML file")),
        }
        Ok(())
    }

    fn element(&self, tag: &BytesStart<'_>, offset: usize, elements: usize) -> Result<Element> {
        if elements > MAX_ELEMENTS {
            return Err(self.error(offset, format!("more than {MAX_ELEMENTS} elements")));
        }
        let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
        let mut attributes = Vec::new();
        for attribute in tag.attributes() {
            let attribute =
                attribute.map_err(|e| self.error(offset, format!("bad attribute in <{name}>: {e}")))?;
            if attributes.len() >= MAX_ATTRIBUTES {
                return Err(self.error(offset, format!("<{name}> has more than {MAX_ATTRIBUTES} attributes")));
            }
            let key = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
            let value = attribute
                .unescape_value()
                .map_err(|e| self.error(offset, format!("<{name} {key}>: {}", entity(&e))))?;
            if let Some(c) = value.chars().find(|&c| !legal(c)) {
                return Err(self.error(
                    offset,
                    format!("<{name} {key}>: the character {} is not allowed in XML", c.escape_default()),
                ));
            }
            if value.len() > MAX_VALUE {
                return Err(self.error(
                    offset,
                    format!("<{name} {key}> has {} bytes, the limit is {MAX_VALUE}", value.len()),
                ));
            }
            attributes.push((key, value.into_owned()));
        }
        Ok(Element { name, attributes, offset, ..Element::default() })
    }
}

/// What is wrong with a reference in a value.
fn entity(e: &quick_xml::Error) -> String {
    match e {
        quick_xml::Error::Escape(EscapeError::UnrecognizedEntity(_, name)) => {
            let name: String = name.chars().take(40).collect();
            format!("entity &{name}; is not expanded; only the five of XML are")
        }
        quick_xml::Error::Escape(EscapeError::UnterminatedEntity(_)) => {
            "an & without its ; (a plain & is written &amp;)".to_owned()
        }
        other => other.to_string(),
    }
}

/// XML 1.0, §2.2.
fn legal(c: char) -> bool {
    !matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// Writes elements as NCCL's own reader wants them: two spaces a level, `key="value"`, `/>` when empty, no prolog.
#[derive(Default)]
pub struct Writer {
    out: String,
    depth: usize,
}

impl Writer {
    /// Opens an element, or writes it whole when it has no children.
    pub fn element(
        &mut self,
        name: &str,
        attributes: &[(String, String)],
        children: Option<&mut dyn FnMut(&mut Writer)>,
    ) {
        for _ in 0..self.depth {
            self.out.push_str("  ");
        }
        self.out.push('<');
        self.out.push_str(name);
        for (key, value) in attributes {
            self.out.push(' ');
            self.out.push_str(key);
            self.out.push_str("=\"");
            escape(value, &mut self.out);
            self.out.push('"');
        }
        let Some(children) = children else {
            self.out.push_str("/>\n");
            return;
        };
        self.out.push_str(">\n");
        self.depth += 1;
        children(self);
        self.depth -= 1;
        for _ in 0..self.depth {
            self.out.push_str("  ");
        }
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push_str(">\n");
    }

    /// The text.
    pub fn finish(self) -> String {
        self.out
    }
}

/// Escapes what may not stand in an attribute or in text.
pub fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            '\t' => out.push_str("&#9;"),
            c @ '\u{7f}'..='\u{9f}' => out.push_str(&format!("&#{};", c as u32)),
            c if !legal(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Element> {
        Document { text, format: "test" }.parse()
    }

    #[test]
    fn any_layout_is_read() {
        let text = "\u{feff}<?xml version='1.0'?>\n<!DOCTYPE t SYSTEM 'x.dtd'>\n<!-- c -->\n<t\ta = '1'\n b=\"2\">\t<u/>x &amp; y<![CDATA[<z>]]></t>";
        let t = parse(text).unwrap();
        assert_eq!((t.get("a"), t.get("b")), (Some("1"), Some("2")));
        assert_eq!(t.children.len(), 1);
        assert_eq!(t.text.trim(), "x & y<z>");
    }

    #[test]
    fn entity_bombs_are_not_expanded() {
        let bomb = "<!DOCTYPE b [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY c \"&a;&a;&a;&a;\">]>\n<s x=\"&c;\"/>";
        let error = parse(bomb).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("entit"), "{error}");
        let error = parse("<s>\n  &c;</s>").unwrap_err().to_string();
        assert!(error.contains("line 2, column 3"), "{error}");
        let error = parse("<s x='a&b'/>").unwrap_err().to_string();
        assert!(error.contains("<s x>: an & without its ;"), "{error}");
        let error = parse("<s x='&c;'/>").unwrap_err().to_string();
        assert!(error.contains("<s x>: entity &c; is not expanded") && !error.contains(".."), "{error}");
    }

    #[test]
    fn nesting_and_counts_are_limited() {
        let deep = "<a>".repeat(100_000);
        assert!(parse(&deep).unwrap_err().to_string().contains("deeper than 64"));
        let many = format!("<a>{}</a>", "<b/>".repeat(MAX_ELEMENTS));
        assert!(parse(&many).unwrap_err().to_string().contains("200000 elements"));
        let attributes: String = (0..100).map(|i| format!(" a{i}='1'")).collect();
        assert!(parse(&format!("<a{attributes}/>")).unwrap_err().to_string().contains("64 attributes"));
        let long = format!("<a b='{}'/>", "x".repeat(MAX_VALUE + 1));
        assert!(parse(&long).unwrap_err().to_string().contains("the limit is"));
    }

    #[test]
    fn characters_that_xml_forbids_are_refused() {
        for bad in ["<a b='\u{1b}[31m'/>", "<a b='&#27;[31m'/>", "<a>\u{7}</a>", "<a b='\u{fffe}'/>"] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("not allowed in XML") && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn what_is_no_xml_is_said() {
        for bad in ["", "hello", "<a>", "<a></b>", "<a/><b/>", "<a b=1/>", "<a b='1' b='2'/>", "<a"] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("line 1"), "{bad}: {error}");
        }
    }
}
