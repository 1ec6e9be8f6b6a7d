//! The files of a model folder: their names, and how they are opened, mapped and replaced.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::ModelError;

/// Bytes that are read at once of files that may be large.
pub(crate) const PIECE: usize = 1 << 20;
/// Largest file but the weights.
const MAX_READ_BYTES: u64 = 1 << 30;
/// File name of the configuration.
pub const CONFIG: &str = "config.json";
/// File name of the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// File name of the weights.
pub const WEIGHTS: &str = "model.safetensors";
/// File name of the dictionary of models whose text is segmented into words
/// ([`crate::config::Segmentation`]): the BLAKE3 hash of the rest, then the dictionary.
pub const DICTIONARY: &str = "dictionary.bin";

/// Opens a file of a model. The folder need not be of the account that reads it, and a pipe there would
/// keep the reader waiting, a device have no end.
pub(crate) fn open_plain(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a plain file"));
    }
    Ok(file)
}

/// The whole of a file that is read at once.
///
/// # Errors
/// If it is no plain file, or larger than any such file of a model: one that has been made so may take hours to read.
pub(crate) fn read_plain(path: &Path) -> std::io::Result<Vec<u8>> {
    let (mut bytes, file) = (Vec::new(), open_plain(path)?);
    check_length(&file)?;
    file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Refuses a file that is too large to be read at once.
pub(crate) fn check_length(file: &File) -> std::io::Result<()> {
    let length = file.metadata()?.len();
    if length > MAX_READ_BYTES {
        return Err(std::io::Error::other(format!(
            "it has {length} bytes, more than {MAX_READ_BYTES}"
        )));
    }
    Ok(())
}

/// Maps a file read-only.
pub fn map_file(path: &Path) -> Result<Mmap, ModelError> {
    let file = open_plain(path).map_err(|e| ModelError::io(path, e))?;
    // SAFETY: the map is read-only. Model files are replaced by renaming (see `write`), never
    // changed in place; truncating one that is mapped would end the process with SIGBUS, which the
    // process model (an encoder process of its own) contains.
    unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io(path, e))
}

/// Writes a file beside `path`, makes it durable and renames it.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), ModelError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let result = (|| {
        // `safetensors` makes files for their owner alone; models are read by the server's account.
        let permissions = File::create(&temporary)?.metadata()?.permissions();
        write(&temporary)?;
        std::fs::set_permissions(&temporary, permissions)?;
        File::open(&temporary)?.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    result.map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        ModelError::io(path, e)
    })
}

/// Reads to the end; `pause` is called between two pieces, and may unwind.
pub(crate) fn in_pieces(
    mut from: impl Read,
    pause: &mut dyn FnMut(),
    mut take: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        pause();
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
