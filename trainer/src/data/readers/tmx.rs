//! Translation Memory eXchange (TMX 1.4b), read as a stream.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use quick_xml::Reader as XmlReader;
use quick_xml::events::{BytesRef, BytesStart, Event};

use super::super::input;
use super::super::{DataError, Group, Result, Row};
use super::{MAX_ROWS, Problems, Reader, is_language};

/// Longest single XML event (a text, a tag) in bytes.
const MAX_EVENT_BYTES: u64 = 1 << 20;

/// Counts lines and bounds what one XML event may take.
struct Bounded {
    input: Box<dyn BufRead + Send>,
    line: u64,
    since_reset: u64,
}

impl std::io::Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let available = self.fill_buf()?;
        let n = available.len().min(buffer.len());
        buffer[..n].copy_from_slice(&available[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Bounded {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.since_reset > MAX_EVENT_BYTES {
            return Err(std::io::Error::other("an element is longer than 1 MiB"));
        }
        let buffer = self.input.fill_buf()?;
        // Short slices, so that the bound is noticed before much has been copied.
        Ok(&buffer[..buffer.len().min(1 << 16)])
    }

    fn consume(&mut self, amount: usize) {
        if let Ok(buffer) = self.input.fill_buf() {
            let seen = &buffer[..amount.min(buffer.len())];
            self.line += seen.iter().filter(|b| **b == b'\n').count() as u64;
        }
        self.since_reset += amount as u64;
        self.input.consume(amount);
    }
}

/// Reads the translation units of a TMX file.
pub struct Tmx {
    path: PathBuf,
    xml: XmlReader<Bounded>,
    buffer: Vec<u8>,
    units: u64,
    finished: bool,
}

impl Tmx {
    /// Opens a TMX file in UTF-8.
    ///
    /// # Errors
    /// [`DataError::Io`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let input = Bounded {
            input: input::open(path)?,
            line: 1,
            since_reset: 0,
        };
        let mut xml = XmlReader::from_reader(input);
        xml.config_mut().check_end_names = true;
        Ok(Self {
            path: path.to_owned(),
            xml,
            buffer: Vec::new(),
            units: 0,
            finished: false,
        })
    }

    fn line(&self) -> u64 {
        self.xml.get_ref().line
    }
}

/// Elements inside a segment that hold mark-up of the original document, not text.
fn is_markup(name: &str) -> bool {
    matches!(name, "bpt" | "ept" | "it" | "ph" | "ut")
}

/// Language of `<tuv>`: `xml:lang`, or `lang` as in TMX 1.1; reduced to its primary subtag in
/// lower case, so that `EN-US` and `en` meet.
fn language_of(tag: &BytesStart<'_>) -> Option<String> {
    let mut found = None;
    for attribute in tag.attributes().flatten() {
        if matches!(attribute.key.as_ref(), "xml:lang" | "lang") {
            let value = attribute.value.into_owned();
            let primary = value
                .split(['-', '_'])
                .next()
                .unwrap_or("")
                .to_ascii_lowercase();
            if is_language(&primary) {
                found = Some(primary);
            }
        }
    }
    found
}

/// Character of a reference: `&amp;`, `&#38;`; others are kept as they stand.
fn resolve(reference: &BytesRef<'_>, out: &mut String) {
    if let Ok(Some(c)) = reference.resolve_char_ref() {
        out.push(c);
        return;
    }
    let name: &str = reference;
    match quick_xml::escape::resolve_predefined_entity(name) {
        Some(text) => out.push_str(text),
        None => {
            out.push('&');
            out.push_str(name);
            out.push(';');
        }
    }
}

/// What has been read of a translation unit.
#[derive(Default)]
struct Unit {
    rows: Vec<Row>,
    language: Option<String>,
    text: String,
    in_segment: bool,
    /// Depth of nested mark-up elements inside the segment.
    markup: usize,
}

impl Unit {
    fn end_segment(&mut self) -> std::result::Result<(), &'static str> {
        self.in_segment = false;
        self.markup = 0;
        let text = std::mem::take(&mut self.text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let language = self.language.clone().ok_or("a segment has no language")?;
        if self.rows.len() >= MAX_ROWS {
            return Err("too many segments in one unit");
        }
        self.rows.push(Row { language, text });
        Ok(())
    }
}

impl Reader for Tmx {
    fn next_group(&mut self, problems: &mut Problems) -> Result<Option<Group>> {
        let mut unit: Option<Unit> = None;
        while !self.finished {
            self.buffer.clear();
            self.xml.get_mut().since_reset = 0;
            let event = match self.xml.read_event_into(&mut self.buffer) {
                Ok(event) => event,
                Err(quick_xml::Error::Io(e)) if e.kind() != std::io::ErrorKind::Other => {
                    let copy = std::io::Error::new(e.kind(), e.to_string());
                    return Err(DataError::io(&self.path, copy));
                }
                Err(e) => {
                    // There is no safe place to go on from after broken XML.
                    self.finished = true;
                    let message = format!("the rest of the file is skipped: {e}");
                    problems.report(&self.path, self.line(), message)?;
                    break;
                }
            };
            let mut message = None;
            match event {
                Event::Eof => {
                    self.finished = true;
                    if unit.is_some() {
                        message = Some("the file ends within a translation unit");
                    }
                }
                Event::Start(tag) => match (tag.name().as_ref(), unit.as_mut()) {
                    ("tu", _) => unit = Some(Unit::default()),
                    ("tuv", Some(unit)) => unit.language = language_of(&tag),
                    ("seg", Some(unit)) => unit.in_segment = true,
                    (name, Some(unit)) if unit.in_segment && is_markup(name) => unit.markup += 1,
                    _ => {}
                },
                Event::End(tag) => match (tag.name().as_ref(), unit.as_mut()) {
                    ("tu", Some(_)) => {
                        self.units += 1;
                        let rows = unit.take().map(|u| u.rows).unwrap_or_default();
                        if rows.len() >= 2 {
                            return Ok(Some(Group {
                                key: self.units.to_string(),
                                rows,
                            }));
                        }
                        message = Some("a translation unit has fewer than two segments");
                    }
                    ("seg", Some(unit)) => message = unit.end_segment().err(),
                    (name, Some(unit)) if unit.in_segment && is_markup(name) => {
                        unit.markup = unit.markup.saturating_sub(1);
                    }
                    _ => {}
                },
                Event::Text(text) => {
                    if let Some(unit) = unit.as_mut()
                        && unit.in_segment
                        && unit.markup == 0
                    {
                        unit.text.push_str(&text);
                    }
                }
                Event::CData(data) => {
                    if let Some(unit) = unit.as_mut()
                        && unit.in_segment
                        && unit.markup == 0
                    {
                        unit.text.push_str(&data);
                    }
                }
                Event::GeneralRef(reference) => {
                    if let Some(unit) = unit.as_mut()
                        && unit.in_segment
                        && unit.markup == 0
                    {
                        resolve(&reference, &mut unit.text);
                    }
                }
                _ => {}
            }
            if let Some(message) = message {
                problems.report(&self.path, self.line(), message)?;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_all;
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], strict: bool) -> Result<(Vec<Group>, Vec<String>)> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.tmx");
        std::fs::write(&path, bytes).expect("write");
        read_all(Tmx::open(&path)?, strict)
    }

    const GOOD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en"/><body>
<tu tuid="1"><prop type="x">not text</prop>
 <tuv xml:lang="en-US"><seg>Fish &amp; <hi>chips</hi> &#x41;<ph>{b}</ph></seg></tuv>
 <tuv xml:lang="DE"><seg>Fisch
   und <![CDATA[<Pommes>]]></seg></tuv>
</tu>
<tu><tuv lang="en"><seg>alone</seg></tuv></tu>
<tu><tuv lang="en"><seg>two</seg></tuv><tuv lang="fr"><seg>deux</seg></tuv></tu>
</body></tmx>"#;

    #[test]
    fn reads_units() {
        let (groups, problems) = read(GOOD.as_bytes(), false).expect("lenient");
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].rows[0].text, "Fish & chips A");
        assert_eq!(groups[0].rows[0].language, "en");
        assert_eq!(groups[0].rows[1].text, "Fisch und <Pommes>");
        assert_eq!(groups[1].rows[1].text, "deux");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("x.tmx:8:"), "{}", problems[0]);
        assert!(read(GOOD.as_bytes(), true).is_err());
    }

    #[test]
    fn hostile_files() {
        let cut = &GOOD[..GOOD.len() - 40];
        assert_eq!(read(cut.as_bytes(), false).expect("lenient").0.len(), 1);
        let mut long = b"<tmx><body><tu><tuv lang='en'><seg>".to_vec();
        long.extend(std::iter::repeat_n(b'x', 5 << 20));
        let (groups, problems) = read(&long, false).expect("lenient");
        assert!(groups.is_empty());
        assert!(problems[0].contains("longer than 1 MiB"), "{}", problems[0]);
        let bomb = br#"<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><tmx><body>
<tu><tuv lang='en'><seg>&b;</seg></tuv><tuv lang='de'><seg>x</seg></tuv></tu></body></tmx>"#;
        let (groups, _) = read(bomb, false).expect("lenient");
        assert_eq!(groups[0].rows[0].text, "&b;");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read(&bytes, false).expect("lenient");
        }

        #[test]
        fn any_cut_is_survived(at in 0..GOOD.len()) {
            if GOOD.is_char_boundary(at) {
                read(&GOOD.as_bytes()[..at], false).expect("lenient");
            }
        }
    }
}
