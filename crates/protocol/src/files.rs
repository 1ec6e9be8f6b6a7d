//! Open files that cross the socket, for [`crate::Request::Search`].

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Files that a search needs: source rows, target rows, result.
const FILES: usize = 3;

/// The byte that the files come with.
const BYTE: [u8; 1] = [b'F'];

/// Sends the files over a socket that has nothing else to send.
///
/// # Errors
/// Those of the socket.
pub fn send_files(socket: impl AsFd, files: [&File; FILES]) -> io::Result<()> {
    let files = files.map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&BYTE)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    if sent == BYTE.len() {
        Ok(())
    } else {
        Err(ErrorKind::WriteZero.into())
    }
}

/// Receives what [`send_files`] sent; waits for it on a blocking socket.
///
/// # Errors
/// Those of the socket; [`ErrorKind::UnexpectedEof`] when the other end is gone,
/// [`ErrorKind::InvalidData`] when something else came.
pub fn receive_files(socket: impl AsFd) -> io::Result<[File; FILES]> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let files: Vec<File> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .map(File::from)
        .collect();
    match files.try_into() {
        Ok(files) if byte == BYTE => Ok(files),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn files_cross_the_socket() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut sent: Vec<File> = (0..FILES).map(|_| tempfile::tempfile().unwrap()).collect();
        send_files(&here, [&sent[0], &sent[1], &sent[2]]).unwrap();
        for (at, file) in sent.iter_mut().enumerate() {
            file.write_all(&[at as u8]).unwrap();
        }
        let mut received = receive_files(&there).unwrap();
        drop(sent);
        for (at, file) in received.iter_mut().enumerate() {
            let mut bytes = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [at as u8]);
        }
    }

    #[test]
    fn other_bytes_and_a_closed_socket_are_errors() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"x").unwrap();
        let error = receive_files(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(here);
        let error = receive_files(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
