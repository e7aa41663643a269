//! Listening sockets that this process was started with.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use listenfd::ListenFd;

/// Returns the inherited sockets that are not taken yet.
fn waiting() -> MutexGuard<'static, Vec<TcpListener>> {
    static WAITING: OnceLock<Mutex<Vec<TcpListener>>> = OnceLock::new();
    let waiting = WAITING.get_or_init(|| {
        let mut passed = ListenFd::from_env();
        let listeners = (0..passed.len()).filter_map(|index| passed.take_tcp_listener(index).ok().flatten());
        Mutex::new(listeners.collect())
    });
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket that listens on `address`, if systemd passed one (`sd_listen_fds(3)`): it held the port while the daemon
/// was restarted, and initiators that came meanwhile wait in it.
pub(super) fn take(address: SocketAddr) -> Option<TcpListener> {
    take_from(&mut waiting(), address)
}

/// Closes those that the configuration does not want, and says so.
pub(crate) fn close_unwanted() {
    for listener in waiting().drain(..) {
        let address = listener.local_addr();
        tracing::warn!(?address, "closed a listening socket from systemd that is not in `listen`");
    }
}

fn take_from(waiting: &mut Vec<TcpListener>, address: SocketAddr) -> Option<TcpListener> {
    let is_it = |listener: &TcpListener| listener.local_addr().is_ok_and(|local| local == address);
    let index = waiting.iter().position(is_it)?;
    Some(waiting.swap_remove(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_passed_is_taken_once_and_only_for_its_own_address() {
        let passed = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = passed.local_addr().unwrap();
        let mut waiting = vec![TcpListener::bind("127.0.0.1:0").unwrap(), passed];
        assert!(take_from(&mut waiting, "127.0.0.2:1".parse().unwrap()).is_none());
        let taken = take_from(&mut waiting, address).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        assert!(take_from(&mut waiting, address).is_none());
        assert_eq!(waiting.len(), 1);
    }
}
