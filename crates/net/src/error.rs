//! Reason why a measurement could not be made.

use std::io;
use std::net::SocketAddr;

use crate::protocol::VERSION;

/// Reason why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No connection.
    #[error(
        "cannot connect to {peer}: {source}; the other machine needs a responder: lunway net serve --listen {peer}"
    )]
    Connect {
        /// Address of the responder.
        peer: SocketAddr,
        /// Underlying error.
        source: io::Error,
    },
    /// A socket option was refused.
    #[error("cannot set {option} of a connection to {peer}: {source}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Of a connection to whom.
        peer: SocketAddr,
        /// Underlying error.
        source: io::Error,
    },
    /// Something else listens there.
    #[error("the program that listens at {0} is not `lunway net serve`")]
    Foreign(SocketAddr),
    /// The responder speaks another version.
    #[error("the responder at {peer} speaks version {theirs} of the protocol, this client version {VERSION}")]
    Version {
        /// Address of the responder.
        peer: SocketAddr,
        /// Its version.
        theirs: u16,
    },
    /// The responder has as many measurements running as it allows.
    #[error("the responder at {0} is busy with other measurements; try again later")]
    Busy(SocketAddr),
    /// Request beyond the bounds of responders.
    #[error("the responder at {0} refused the request as out of bounds")]
    Refused(SocketAddr),
    /// Request that cannot be fulfilled.
    #[error("{0}")]
    Unreasonable(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// Nothing moved for too long.
    #[error("nothing moved on the connection for {} s", .0.as_secs())]
    Stalled(std::time::Duration),
    /// The other end took longer for the whole of it than was agreed.
    #[error("the other end did not finish in time")]
    Overdue,
    /// Stopped before there was anything to report.
    #[error("interrupted")]
    Stopped,
}
