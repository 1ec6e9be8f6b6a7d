//! The socket in the data folder: what others do to it, and what is left of it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::{process_exists, wait_until};

use super::support::{SOCKET, embed, models, running_encoder};

#[test]
fn a_socket_left_over_from_a_crash_is_replaced() -> Result<()> {
    let (_models, builder) = models()?;
    let mut cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    drop(client);

    cluster.kill9()?;
    wait_until("the encoder has ended with the server", || {
        Ok(!process_exists(encoder))
    })?;
    let socket = cluster.data().join(SOCKET);
    let _ = std::fs::remove_file(&socket);
    drop(UnixListener::bind(&socket)?);
    assert!(socket.exists() && UnixStream::connect(&socket).is_err());

    cluster.start()?;
    let mut client = cluster.connect("d")?;
    assert_eq!(embed(&mut client, "text")?, expected);
    assert!(
        cluster
            .log()
            .contains("replacing a socket file that nobody listens on")
    );
    Ok(())
}

#[test]
fn foreign_bytes_on_the_socket_harm_nobody() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let socket = cluster.data().join(SOCKET);
    let hello = [3u8, 0, 0, 0, 1, 1, 0];
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        // A handshake of another version, a first message that is none, a frame without end.
        &[3, 0, 0, 0, 1, 0xff, 0xff],
        &[9, 0, 0, 0, 5, 1, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 4],
    ] {
        for handshake_done in [false, true] {
            let mut stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            if handshake_done {
                stream.write_all(&hello)?;
            }
            // The encoder may have hung up already.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            embed(&mut client, "text")?;
        }
    }
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

/// The shape of the data folder: nothing of laser's goes into a base backup.
#[test]
fn base_backups_leave_the_encoder_out() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("max_wal_senders", "4").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let target = cluster.scratch()?.join("backup");
    let output = cluster
        .command("pg_basebackup")
        .args(["--checkpoint=fast", "--wal-method=none", "--pgdata"])
        .arg(&target)
        .output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    assert!(!messages.contains("special file"), "{messages}");
    assert!(cluster.data().join(SOCKET).exists());
    let left = |folder: &Path| -> Result<usize> {
        Ok(if folder.exists() {
            std::fs::read_dir(folder)?.count()
        } else {
            0
        })
    };
    assert_eq!(left(&target.join("laser"))?, 0);
    Ok(())
}

/// Without its file nobody gets to the socket.
#[test]
fn a_socket_whose_file_is_removed_is_made_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let socket = cluster.data().join(SOCKET);
    for replace in [false, true] {
        std::fs::remove_file(&socket)?;
        if replace {
            std::fs::write(&socket, "a plain file")?;
        }
        let mut other = cluster.connect("d")?;
        let asked = Instant::now();
        ensure!(embed(&mut other, "text")? == expected);
        let took = asked.elapsed();
        ensure!(took < Duration::from_secs(8), "{took:?}");
        // Who was connected still is.
        ensure!(embed(&mut client, "text")? == expected);
    }
    ensure!(running_encoder(&mut client)? == encoder);
    Ok(())
}
