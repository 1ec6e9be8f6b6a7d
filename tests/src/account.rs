//! The account that runs servers: PostgreSQL refuses to run as root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// User and group that server programs run as, or `None` when the current user will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

impl Account {
    /// `postgres` if there is such an account, else `nobody`; `None` unless called by root.
    ///
    /// # Errors
    /// When root calls it and there is neither.
    pub fn for_servers() -> Result<Option<Account>> {
        if fs::metadata("/proc/self")
            .context("reading /proc/self")?
            .uid()
            != 0
        {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| parse(&passwd, name))
            .map(Some)
            .context("neither an account postgres nor nobody exists to run servers as")
    }

    /// A command that runs as this account (as the current user for `None`), from a folder that
    /// every account can enter.
    pub fn command(account: Option<Account>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/");
        if let Some(Account { uid, gid }) = account {
            command.uid(uid).gid(gid).env("HOME", "/");
        }
        command
    }

    /// Gives `path` to this account; nothing to do for `None`.
    ///
    /// # Errors
    /// When the owner cannot be changed.
    pub fn own(account: Option<Account>, path: &Path) -> Result<()> {
        if let Some(Account { uid, gid }) = account {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .with_context(|| format!("changing the owner of {}", path.display()))?;
        }
        Ok(())
    }

    /// Whether this account can reach `path`: every folder above it must be open to it.
    pub fn reaches(account: Option<Account>, path: &Path) -> bool {
        Account::command(account, "test")
            .args(["-r".as_ref(), path.as_os_str()])
            .status()
            .is_ok_and(|status| status.success())
    }
}

fn parse(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(
            parse(passwd, "postgres"),
            Some(Account { uid: 101, gid: 104 })
        );
        assert_eq!(parse(passwd, "nobody"), None);
    }
}
