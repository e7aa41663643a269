//! Objects in a bucket of a store that speaks S3: AWS, MinIO, Ceph's RADOS Gateway and others.
//!
//! ```text
//!   Address ──┐
//!   Settings ─┴─▶ Store ─▶ sign (SigV4, over the body too) ─▶ HTTP/1.1, TLS ─▶ the store
//!                   │
//!                   └─ get (a range), put (under a condition), remove, list
//! ```
//!
//! # Promises
//!
//! - A call ends: each read and write of a socket, each request and all attempts together have a limit ([`Timing`]).
//! - What an answer may take of memory is limited before it is read, whatever the store says of its length.
//! - An upload has its SHA-256 in its signature and its MD5 in a header: a store that gets other bytes refuses them.
//! - A condition is asked for with each attempt. An attempt whose answer was lost is recognised by a random mark that
//!   each upload has among its metadata, so that no caller is told of a conflict with itself.
//! - A redirect is an error: credentials are for one host.
//! - No error, address or debug output has a secret.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Address`] | `s3://BUCKET/PATH?endpoint=…` |
//! | [`Settings`], [`Credentials`] | environment and shared credentials file |
//! | [`Store`] | the client of one bucket |
//! | `sign` | AWS Signature Version 4 |
//! | `exchange` | one request and its answer, and what is tried again |
//! | `listing` | XML of listings and errors |
//!
//! **Invariant:** this crate knows nothing of backups.

mod address;
mod credentials;
mod error;
mod exchange;
mod listing;
mod sign;
mod store;

pub use address::{Address, AddressError, is_address};
pub use credentials::{Credentials, Settings, Timing};
pub use error::StoreError;
pub use exchange::Body;
pub use listing::Listing;
pub use store::{Condition, Etag, Part, Store};
