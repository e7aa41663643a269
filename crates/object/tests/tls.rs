//! TLS: certificates that are trusted, and those that are not.
//!
//! `tls/` has an authority's certificate and one that it has made for `localhost`, both for a hundred
//! years.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lunway_object::{Address, Body, Condition, Credentials, Settings, Store, StoreError, Timing};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::server::Server;

const CHAIN: &[u8] = include_bytes!("tls/server.pem");
const KEY: &[u8] = include_bytes!("tls/server.key");

fn server() -> Server {
    let chain = CertificateDer::pem_reader_iter(Cursor::new(CHAIN)).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    Server::over(move |socket| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        Ok(Box::new(StreamOwned::new(connection, socket)))
    })
}

fn put(address: &str) -> Result<(), StoreError> {
    let timing = Timing { patience: Duration::ZERO, ..Timing::default() };
    let credentials = Credentials::new("key", "secret", None);
    let settings = Settings { credentials, endpoint: None, region: None, ca_file: None, timing };
    let store = Store::open(&Address::parse(address).unwrap(), &settings)?;
    store.put("k", Body::Bytes(&[7; 1 << 20]), Condition::Always)?;
    assert_eq!(store.get("k", 0..1 << 20)?.bytes, [7; 1 << 20]);
    Ok(())
}

#[test]
fn a_store_is_trusted_by_its_certificate_alone() {
    let server = server();
    let port = server.address().port();
    let ca = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/ca.pem");
    let ca = ca.display();
    put(&format!("s3://bucket?endpoint=https://localhost:{port}&ca-file={ca}")).unwrap();
    let requests = server.requests();
    let said = |address: &str| put(address).unwrap_err().to_string();
    let unknown = said(&format!("s3://bucket?endpoint=https://localhost:{port}"));
    assert!(unknown.contains("certificate") && unknown.contains("ca-file=FILE"), "{unknown}");
    // It is made for another name.
    let other = said(&format!("s3://bucket?endpoint=https://127.0.0.1:{port}&ca-file={ca}"));
    assert!(other.contains("certificate"), "{other}");
    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/server.key");
    let none = said(&format!("s3://bucket?endpoint=https://localhost:{port}&ca-file={}", key.display()));
    assert!(none.contains("there is none"), "{none}");
    assert_eq!(server.requests(), requests, "nothing was sent to a store that is not trusted");
}
