//! A responder in this process, on a thread of its own.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use crate::NetError;
use crate::line::StopFlag;
use crate::responder::Responder;

/// A responder that lives as long as this value: for what this machine's own stack can do, between two threads.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    stop: StopFlag,
    thread: Option<JoinHandle<Result<(), NetError>>>,
}

impl Loopback {
    /// Starts one on an address of this machine, at a port that is free, in the caller's network namespace.
    pub fn start(address: IpAddr) -> Result<Self, NetError> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let stop = StopFlag::new();
        let asked = stop.clone();
        let serve = move || Responder::serve(listener, &asked);
        let thread = thread::Builder::new().name("net".into()).spawn(serve)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
