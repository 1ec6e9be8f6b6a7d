//! Small file systems, to fill them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::skipped;

/// A file system in memory with room for little, in place of a folder. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of that many kilobytes over an existing folder, with the folder's owner.
    /// `None` where this process may not mount: that takes root.
    ///
    /// # Errors
    /// When the folder does not exist.
    pub fn mount(folder: &Path, kilobytes: u64) -> Result<Option<SmallDisk>> {
        let owner = folder.metadata()?;
        let options = format!(
            "size={kilobytes}k,mode=0700,uid={},gid={}",
            owner.uid(),
            owner.gid()
        );
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            skipped(
                "full disks",
                "a small file system cannot be mounted (root may)",
            );
        }
        let folder = folder.to_owned();
        Ok(mounted.then_some(SmallDisk { folder }))
    }

    /// Takes it away again; what is open in it lives on until it is closed.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(self) -> Result<()> {
        ensure!(self.detach(), "cannot unmount {}", self.folder.display());
        std::mem::forget(self);
        Ok(())
    }

    fn detach(&self) -> bool {
        let status = Command::new("umount")
            .arg("--lazy")
            .arg(&self.folder)
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.detach();
    }
}
