//! Unix sockets that only their user may connect to: [`UnixSocket`]. The daemon's API listens on one, and so does NBD.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use lunway_occupancy::FileId;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Connections that the kernel holds until they are accepted: what clients that use several open at once.
const BACKLOG: i32 = 64;

/// Reason why there is no socket where it should be.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody answers there.
    #[error("another program listens on {}", .0.display())]
    Taken(PathBuf),
    /// Something else is there, which is not ours to remove.
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// The path may not be had.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
}

/// A listening Unix socket that only this user may connect to; its name goes when this does.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    name: SocketName,
}

/// The name of a socket, removed when dropped unless somebody else has taken it.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    id: FileId,
}

impl UnixSocket {
    /// Listens on `path`, does not block. A socket that a dead process has left behind is removed, one that answers is
    /// not.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |source| BindError::Listen { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Err(_) => {}
            Ok(found) if !found.file_type().is_socket() => return Err(BindError::NoSocket(path.to_owned())),
            Ok(_) if is_left_behind(path).map_err(failed)? => fs::remove_file(path).map_err(failed)?,
            Ok(_) => return Err(BindError::Taken(path.to_owned())),
        }
        Self::bind_new(path).map_err(failed)
    }

    fn bind_new(path: &Path) -> io::Result<Self> {
        let socket = new()?;
        // Before it has a name: Linux makes the name with the mode of the socket, so that there is no moment for
        // somebody else.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let found = fs::symlink_metadata(path)?;
        let name = SocketName { path: path.to_owned(), id: FileId::of(&found) };
        if found.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("its mode cannot be set"));
        }
        listen(&socket, BACKLOG)?;
        Ok(Self { listener: socket.into(), name })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.name.path
    }

    /// The socket, which does not block, and what its name lives as long as.
    pub fn into_parts(self) -> (UnixListener, SocketName) {
        (self.listener, self.name)
    }
}

impl SocketName {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| FileId::of(&found) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn new() -> io::Result<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Returns `true` if no process listens on a socket any more. A socket too busy to answer now has a listener.
fn is_left_behind(path: &Path) -> io::Result<bool> {
    Ok(connect(new()?, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_this_user_may_connect_and_the_name_goes_with_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(socket.path(), path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced_and_that_of_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // Dropped without its name, as a kill does.
        drop(UnixListener::bind(&path).unwrap());
        let living = UnixSocket::bind(&path).unwrap();
        assert!(matches!(UnixSocket::bind(&path), Err(BindError::Taken(_))));
        UnixStream::connect(&path).unwrap();
        drop(living);
        fs::write(&path, "notes").unwrap();
        assert!(matches!(UnixSocket::bind(&path), Err(BindError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }

    #[test]
    fn one_whose_queue_is_full_is_taken_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _busy = UnixSocket::bind(&path).unwrap();
        let _waiting: Vec<_> = (0..=BACKLOG).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(matches!(UnixSocket::bind(&path), Err(BindError::Taken(_))));
        assert!(path.exists());
    }

    #[test]
    fn a_name_that_somebody_else_took_is_left_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
