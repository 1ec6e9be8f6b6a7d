//! Writes packed corpora.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::packed::{Header, MAGIC};
use super::temporary::unnamed_file;
use super::{DataError, Result, hash64, text_hash};

/// A section that grows in a temporary file beside the corpus.
struct Section {
    file: BufWriter<File>,
    bytes: u64,
}

impl Section {
    fn new(folder: &Path) -> std::io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(unnamed_file(folder)?),
            bytes: 0,
        })
    }

    fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

/// One sentence as it is written.
#[derive(Clone, Debug)]
pub struct PackedSentence<'a> {
    /// Language code.
    pub language: &'a str,
    /// The text, for its duplicate hash.
    pub text: &'a str,
    /// Token ids, not yet cut.
    pub ids: &'a [u32],
    /// Sentences that differ from it in one thing, with their token ids. Those that differ behind
    /// the cut alone are left out.
    pub perturbed: &'a [(String, Vec<u32>)],
}

/// Writes a packed corpus group by group; needs memory only for the names.
pub struct PackWriter {
    path: PathBuf,
    tokenizer: String,
    vocab_size: u32,
    max_tokens: u32,
    width: u8,
    sources: Vec<String>,
    languages: Vec<String>,
    language_ids: HashMap<String, u16>,
    groups: u64,
    sentences: u64,
    tokens: u64,
    /// In the order of the sections of the file.
    group_start: Section,
    group_source: Section,
    group_key: Section,
    sentence_start: Section,
    sentence_language: Section,
    sentence_hash: Section,
    token_ids: Section,
    perturbed: u64,
    perturbed_count: u64,
    perturbed_of: Section,
    perturbed_start: Section,
    perturbed_hash: Section,
    perturbed_ids: Section,
}

impl PackWriter {
    /// Starts a corpus at `path`. `tokenizer` is the blake3 of the tokenizer's file; ids take two
    /// bytes where the vocabulary allows it.
    ///
    /// # Errors
    /// [`DataError::Io`] if the folder cannot be written.
    pub fn create(
        path: &Path,
        tokenizer: String,
        vocab_size: u32,
        max_tokens: u32,
    ) -> Result<Self> {
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        let section = || Section::new(&folder).map_err(|e| DataError::io(&folder, e));
        let mut writer = Self {
            path: path.to_owned(),
            tokenizer,
            vocab_size,
            max_tokens,
            width: if vocab_size <= 1 << 16 { 2 } else { 4 },
            sources: Vec::new(),
            languages: Vec::new(),
            language_ids: HashMap::new(),
            groups: 0,
            sentences: 0,
            tokens: 0,
            group_start: section()?,
            group_source: section()?,
            group_key: section()?,
            sentence_start: section()?,
            sentence_language: section()?,
            sentence_hash: section()?,
            token_ids: section()?,
            perturbed: 0,
            perturbed_count: 0,
            perturbed_of: section()?,
            perturbed_start: section()?,
            perturbed_hash: section()?,
            perturbed_ids: section()?,
        };
        writer.wrap(|w| w.group_start.push(&0u32.to_le_bytes()))?;
        writer.wrap(|w| w.sentence_start.push(&0u64.to_le_bytes()))?;
        writer.wrap(|w| w.perturbed_of.push(&0u32.to_le_bytes()))?;
        writer.wrap(|w| w.perturbed_start.push(&0u64.to_le_bytes()))?;
        Ok(writer)
    }

    fn wrap<T>(&mut self, f: impl FnOnce(&mut Self) -> std::io::Result<T>) -> Result<T> {
        f(self).map_err(|e| DataError::io(&self.path, e))
    }

    /// Adds a group. Groups of one source need not be adjacent.
    ///
    /// # Errors
    /// [`DataError::Io`] if a file cannot be written, [`DataError::Config`] past 2^32 sentences,
    /// 65,535 languages or sources, or for an id outside the vocabulary.
    pub fn push(&mut self, source: &str, key: &str, group: &[PackedSentence<'_>]) -> Result<()> {
        let source_id = match self.sources.iter().rposition(|s| s == source) {
            Some(id) => id,
            None => {
                self.sources.push(source.to_owned());
                self.sources.len() - 1
            }
        };
        if source_id > usize::from(u16::MAX) {
            return Err(DataError::Config("more than 65536 sources".into()));
        }
        for sentence in group {
            let language = self.language(sentence.language)?;
            let kept = self.cut(sentence.ids);
            let ids = self.bytes(kept)?;
            for (text, other) in sentence.perturbed {
                let other = self.cut(other);
                if other == kept {
                    continue;
                }
                let ids = self.bytes(other)?;
                self.perturbed_count += other.len() as u64;
                self.perturbed += 1;
                let (hash, end) = (text_hash(text) as u32, self.perturbed_count);
                self.wrap(|w| {
                    w.perturbed_ids.push(&ids)?;
                    w.perturbed_start.push(&end.to_le_bytes())?;
                    w.perturbed_hash.push(&hash.to_le_bytes())
                })?;
            }
            let perturbed = self.perturbed as u32;
            self.sentences += 1;
            self.tokens += kept.len() as u64;
            // The low half: two texts are compared within a batch only.
            let hash = text_hash(sentence.text) as u32;
            let end = self.tokens;
            self.wrap(|w| {
                w.token_ids.push(&ids)?;
                w.sentence_start.push(&end.to_le_bytes())?;
                w.perturbed_of.push(&perturbed.to_le_bytes())?;
                w.sentence_language.push(&language.to_le_bytes())?;
                w.sentence_hash.push(&hash.to_le_bytes())
            })?;
        }
        let end = u32::try_from(self.sentences + self.perturbed)
            .ok()
            .filter(|n| *n < u32::MAX)
            .map(|_| self.sentences as u32)
            .ok_or_else(|| DataError::Config("more than 2^32 sentences in one corpus".into()))?;
        self.groups += 1;
        let key = hash64(key.as_bytes());
        self.wrap(|w| {
            w.group_start.push(&end.to_le_bytes())?;
            w.group_source.push(&(source_id as u16).to_le_bytes())?;
            w.group_key.push(&key.to_le_bytes())
        })
    }

    fn cut<'s>(&self, ids: &'s [u32]) -> &'s [u32] {
        &ids[..ids.len().min(self.max_tokens as usize)]
    }

    /// Ids as they are written.
    fn bytes(&self, ids: &[u32]) -> Result<Vec<u8>> {
        if let Some(id) = ids.iter().find(|id| **id >= self.vocab_size) {
            return Err(DataError::Config(format!(
                "token id {id} is outside the vocabulary of {}",
                self.vocab_size
            )));
        }
        let width = usize::from(self.width);
        let bytes = |id: &u32| id.to_le_bytes().into_iter().take(width);
        Ok(ids.iter().flat_map(bytes).collect())
    }

    fn language(&mut self, code: &str) -> Result<u16> {
        if let Some(id) = self.language_ids.get(code) {
            return Ok(*id);
        }
        let id = u16::try_from(self.languages.len())
            .map_err(|_| DataError::Config("more than 65536 languages".into()))?;
        self.languages.push(code.to_owned());
        self.language_ids.insert(code.to_owned(), id);
        Ok(id)
    }

    /// Joins the sections into the file, compressed as a whole at Zstandard level `compress` if
    /// given. The file appears under its name only when it is complete.
    ///
    /// # Errors
    /// [`DataError::Io`] if a file cannot be written.
    pub fn finish(self, compress: Option<i32>) -> Result<Header> {
        let path = self.path.clone();
        self.join(compress).map_err(|e| DataError::io(&path, e))
    }

    fn join(self, compress: Option<i32>) -> std::io::Result<Header> {
        let mut sections = vec![
            ("group_start", self.group_start),
            ("group_source", self.group_source),
            ("group_key", self.group_key),
            ("sentence_start", self.sentence_start),
            ("sentence_language", self.sentence_language),
            ("sentence_hash", self.sentence_hash),
            ("tokens", self.token_ids),
        ];
        if self.perturbed > 0 {
            sections.extend([
                ("perturbed_of", self.perturbed_of),
                ("perturbed_start", self.perturbed_start),
                ("perturbed_hash", self.perturbed_hash),
                ("perturbed_tokens", self.perturbed_ids),
            ]);
        }
        let mut places = BTreeMap::new();
        let mut at = 0u64;
        for (name, section) in &sections {
            places.insert((*name).to_owned(), (at, section.bytes));
            at = (at + section.bytes).next_multiple_of(8);
        }
        let header = Header {
            sources: self.sources,
            languages: self.languages,
            tokenizer: self.tokenizer,
            vocab_size: self.vocab_size,
            max_tokens: self.max_tokens,
            token_width: self.width,
            groups: self.groups,
            sentences: self.sentences,
            tokens: self.tokens,
            perturbed: self.perturbed,
            perturbed_tokens: self.perturbed_count,
            sections: places,
        };
        let partial = self.path.with_extension("partial");
        let file = BufWriter::new(File::create(&partial)?);
        let file = match compress {
            Some(level) => {
                let mut encoder = zstd::Encoder::new(file, level)?;
                encoder.include_checksum(true)?;
                write_file(&mut encoder, &header, sections)?;
                encoder.finish()?
            }
            None => {
                let mut file = file;
                write_file(&mut file, &header, sections)?;
                file
            }
        };
        file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        std::fs::rename(&partial, &self.path)?;
        Ok(header)
    }
}

fn write_file(
    out: &mut dyn Write,
    header: &Header,
    sections: Vec<(&str, Section)>,
) -> std::io::Result<()> {
    let json = serde_json::to_vec(header)?;
    out.write_all(MAGIC)?;
    out.write_all(&(json.len() as u64).to_le_bytes())?;
    out.write_all(&json)?;
    pad(out, 16 + json.len() as u64)?;
    for (name, section) in sections {
        let bytes = section.bytes;
        let mut file = section.file.into_inner().map_err(|e| e.into_error())?;
        file.rewind()?;
        let copied = std::io::copy(&mut BufReader::new(file).take(bytes), out)?;
        if copied != bytes {
            return Err(std::io::Error::other(format!("section {name} was cut off")));
        }
        pad(out, bytes)?;
    }
    Ok(())
}

fn pad(out: &mut dyn Write, written: u64) -> std::io::Result<()> {
    let missing = written.next_multiple_of(8) - written;
    out.write_all(&[0; 8][..missing as usize])
}

#[cfg(test)]
mod tests {
    use super::super::packed::PackedCorpus;
    use super::*;
    use proptest::prelude::*;

    type Rows = Vec<(u8, Vec<u32>)>;

    fn write(path: &Path, groups: &[Rows], vocab: u32, compress: Option<i32>) -> Header {
        let mut writer = PackWriter::create(path, "t".into(), vocab, 6).expect("create");
        for (i, rows) in groups.iter().enumerate() {
            let names: Vec<String> = rows.iter().map(|r| format!("l{}", r.0)).collect();
            let sentences: Vec<_> = rows
                .iter()
                .zip(&names)
                .map(|((_, ids), language)| PackedSentence {
                    language,
                    text: language,
                    ids,
                    perturbed: &[],
                })
                .collect();
            let source = if i % 2 == 0 { "even" } else { "odd" };
            writer
                .push(source, &i.to_string(), &sentences)
                .expect("push");
        }
        writer.finish(compress).expect("finish")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn what_is_packed_comes_back(
            groups in proptest::collection::vec(
                proptest::collection::vec((0u8..4, proptest::collection::vec(0u32..300, 0..9)), 1..5),
                0..20,
            ),
            wide: bool,
            compressed: bool,
        ) {
            let folder = tempfile::tempdir().expect("folder");
            let path = folder.path().join("c.pack");
            let vocab = if wide { 70_000 } else { 300 };
            let header = write(&path, &groups, vocab, compressed.then_some(3));
            prop_assert_eq!(header.token_width, if wide { 4 } else { 2 });
            let corpus = PackedCorpus::open(&path).expect("open");
            prop_assert_eq!(corpus.header(), &header);
            prop_assert_eq!(corpus.groups() as usize, groups.len());
            let mut sentence = 0;
            for (g, rows) in groups.iter().enumerate() {
                prop_assert_eq!(corpus.group(g as u32), sentence..sentence + rows.len() as u32);
                for (language, ids) in rows {
                    let name = &corpus.header().languages[usize::from(corpus.language(sentence))];
                    prop_assert_eq!(name, &format!("l{language}"));
                    let mut out = Vec::new();
                    corpus.tokens_into(sentence, 100, &mut out);
                    prop_assert_eq!(&out[..], &ids[..ids.len().min(6)]);
                    prop_assert_eq!(corpus.group_of(sentence), g as u32);
                    sentence += 1;
                }
            }
        }

        #[test]
        fn damage_is_an_error_not_a_panic(at in 0usize..2000, value: u8, cut in 0usize..2000) {
            let folder = tempfile::tempdir().expect("folder");
            let path = folder.path().join("c.pack");
            write(&path, &[vec![(0, vec![1, 2]), (1, vec![3])], vec![(1, vec![]), (2, vec![4])]], 9, None);
            let mut bytes = std::fs::read(&path).expect("read");
            if at < bytes.len() {
                bytes[at] = value;
            }
            bytes.truncate(bytes.len().min(cut.max(1)));
            std::fs::write(&path, &bytes).expect("write");
            if let Ok(corpus) = PackedCorpus::open(&path) {
                for s in 0..corpus.sentences() {
                    let mut out = Vec::new();
                    corpus.tokens_into(s, 3, &mut out);
                    assert!(usize::from(corpus.language(s)) < corpus.header().languages.len());
                    assert!(corpus.group_of(s) < corpus.groups());
                }
            }
        }
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let mut writer =
            PackWriter::create(&folder.path().join("c"), "t".into(), 5, 6).expect("create");
        let sentence = PackedSentence {
            language: "a",
            text: "x",
            ids: &[5],
            perturbed: &[],
        };
        assert!(writer.push("s", "k", &[sentence]).is_err());
        drop(writer);
        let left = std::fs::read_dir(folder.path()).expect("folder").count();
        assert_eq!(left, 0, "temporary files are unnamed");
    }

    #[test]
    fn perturbed_sentences_come_behind_all_others() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("c");
        let mut writer = PackWriter::create(&path, "t".into(), 9, 3).expect("create");
        let of = |text: &str, ids: &[u32]| (text.to_owned(), ids.to_vec());
        // The second one differs behind the cut alone.
        let others = [
            of("x", &[2, 1]),
            of("y", &[1, 2, 3, 8]),
            of("z", &[4, 4, 4, 4]),
        ];
        let sentence = |language, ids, perturbed| PackedSentence {
            language,
            text: language,
            ids,
            perturbed,
        };
        let english = sentence("en", &[1, 2, 3, 4][..], &others[..]);
        let group = [
            sentence("de", &[7][..], &[][..]),
            english,
            sentence("fr", &[6], &[]),
        ];
        writer.push("s", "k", &group).expect("push");
        writer.push("s", "l", &group[..2]).expect("push");
        let header = writer.finish(None).expect("finish");
        assert_eq!((header.sentences, header.perturbed), (5, 4));
        let corpus = PackedCorpus::open(&path).expect("open");
        let lists: Vec<_> = (0..5).map(|s| corpus.perturbed(s)).collect();
        assert_eq!(lists, [5..5, 5..7, 7..7, 7..7, 7..9]);
        let ids = corpus.gather(5..9, 9);
        let rows: Vec<&[u32]> = (0..4).map(|i| ids.row(i)).collect();
        assert_eq!(rows, [&[2, 1][..], &[4, 4, 4], &[2, 1], &[4, 4, 4]]);
        assert_eq!(corpus.text_hash(5), text_hash("x") as u32);
        assert_eq!(corpus.text_hash(6), text_hash("z") as u32);
        let mut bytes = std::fs::read(&path).expect("read");
        let end = bytes.len() - 8;
        bytes.truncate(end);
        std::fs::write(&path, &bytes).expect("write");
        assert!(PackedCorpus::open(&path).is_err());
    }
}
