//! A Unix socket that only this user may connect to.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixStream};

use crate::server::BindError;

/// Connections that wait to be accepted: what clients that use several open at once.
const BACKLOG: u32 = 64;

/// A listening Unix socket that only this user may connect to; its name goes when this does.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    name: Name,
}

/// The name of a socket, removed when dropped unless somebody else has taken it.
struct Name {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for Name {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl UnixSocket {
    /// Listens on `path`. A socket that a dead process has left behind is removed, one that answers is not.
    pub(crate) async fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |source| BindError::Listen { address: path.display().to_string(), source };
        match fs::symlink_metadata(path) {
            Err(_) => {}
            Ok(found) if !found.file_type().is_socket() => return Err(BindError::NoSocket(path.to_owned())),
            Ok(_) => match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                _ => return Err(BindError::Taken(path.to_owned())),
            },
        }
        Self::bind_new(path).map_err(failed)
    }

    fn bind_new(path: &Path) -> io::Result<Self> {
        let socket = tokio::net::UnixSocket::new_stream()?;
        // Before it has a name: Linux makes the name with the mode of the socket, so that there is no moment for somebody else.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        socket.bind(path)?;
        let name = Name { path: path.to_owned(), inode: inode(path)? };
        Ok(Self { listener: socket.listen(BACKLOG)?, name })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.name.path
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}
