//! One request and its answer, and what of it is tried again.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use md5::Md5;
use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, Request as HttpRequest};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody};

use crate::credentials::{Credentials, PAUSE_MAX, Timing};
use crate::error::StoreError;
use crate::listing::{Refusal, refusal};
use crate::sign::{Signed, authorization, hex};

/// Most bytes of an error's body that are read: a sentence in XML.
const REFUSAL_MAX: u64 = 64 << 10;
/// Most bytes of an answer's headers: metadata of an object has at most 2 KiB.
const HEADERS_MAX: usize = 32 << 10;
/// Bytes that an exchange may take as long as: what is received is at most a window, or a page of a listing.
const RECEIVED: u64 = 8 << 20;
/// Longest pause that a store may ask for by `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(20);
/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;
/// Most bytes of a PEM file.
const PEM_MAX: u64 = 4 << 20;

/// What an upload sends.
#[derive(Clone, Copy)]
pub enum Body<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// A file, from its beginning, with so many bytes.
    File(&'a File, u64),
}

impl Body<'_> {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) => *len,
        }
    }

    /// Returns `true` if nothing is sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// SHA-256, hexadecimal, and MD5 as in the header `Content-MD5`.
    fn sums(&self) -> io::Result<(String, String)> {
        let (mut sha, mut md5) = (Sha256::new(), Md5::new());
        match self {
            Self::Bytes(bytes) => {
                sha.update(bytes);
                md5.update(bytes);
            }
            Self::File(file, _) => {
                let mut file = *file;
                file.rewind()?;
                let mut piece = vec![0; PIECE];
                loop {
                    match file.read(&mut piece)? {
                        0 => break,
                        read => {
                            sha.update(&piece[..read]);
                            md5.update(&piece[..read]);
                        }
                    }
                }
            }
        }
        Ok((hex(&sha.finalize()), BASE64_STANDARD.encode(md5.finalize())))
    }
}

/// A request: method, path and query escaped, further headers with names in lower case.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) path: &'a str,
    /// In the order of the names.
    pub(crate) query: &'a str,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Body<'a>>,
    /// Most bytes of the answer's body.
    pub(crate) most: u64,
}

/// An answer that is no failure: 2xx, or what the caller knows the meaning of (404, 412, 416).
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) refusal: Refusal,
    /// An attempt before may have been carried out.
    pub(crate) is_repeated: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The way to one host.
pub(crate) struct Exchange {
    agent: Agent,
    /// `https://HOST[:PORT]`
    base: String,
    host: String,
    /// What errors call the store.
    place: String,
    region: String,
    credentials: Credentials,
    timing: Timing,
}

/// End of an attempt that brought nothing.
enum Failure {
    /// Another one may help, after this time at least.
    Passing(String, Duration),
    Final(StoreError),
}

impl Exchange {
    /// `base`: `https://HOST[:PORT]`, `place`: what errors call it.
    pub(crate) fn new(
        base: String,
        place: String,
        region: String,
        credentials: Credentials,
        ca_file: Option<&std::path::Path>,
        timing: Timing,
    ) -> Result<Self, StoreError> {
        let (scheme, host) = base.split_once("://").unwrap_or(("https", &base));
        let host = host.to_owned();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .user_agent(concat!("lunway/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(HEADERS_MAX)
            .timeout_resolve(Some(timing.connect))
            .timeout_connect(Some(timing.connect))
            .timeout_per_read(Some(timing.stall))
            .timeout_per_write(Some(timing.stall));
        if scheme == "https" {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder()
                .unversioned_rustls_crypto_provider(provider)
                .root_certs(roots(ca_file)?)
                .build();
            config = config.tls_config(tls);
        }
        if is_loopback(&host) {
            // A proxy has another loopback.
            config = config.proxy(None);
        }
        let agent = config.build().new_agent();
        Ok(Self { agent, base, host, place, region, credentials, timing })
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Sends a request until it has an answer, within the limits of time.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response, StoreError> {
        let sums = request.body.map(|body| body.sums()).transpose().map_err(StoreError::Source)?;
        let (begun, mut attempts, mut pause) = (Instant::now(), 0, self.timing.pause);
        loop {
            attempts += 1;
            match self.attempt(request, sums.as_ref()) {
                Ok(response) => return Ok(Response { is_repeated: attempts > 1, ..response }),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(why, least)) => {
                    let wait = pause.max(least);
                    if begun.elapsed() + wait > self.timing.patience {
                        let seconds = begun.elapsed().as_secs();
                        return Err(StoreError::Failed { place: self.place.clone(), attempts, seconds, why });
                    }
                    thread::sleep(jittered(wait));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn attempt(&self, request: &Request<'_>, sums: Option<&(String, String)>) -> Result<Response, Failure> {
        let built = self.signed(request, sums);
        let answer = match request.body {
            None => self.run(built.map(|built| built.body(())), request.most),
            Some(Body::Bytes(bytes)) => self.run(built.map(|built| built.body(bytes)), bytes.len() as u64),
            Some(Body::File(mut file, len)) => {
                file.rewind().map_err(|error| Failure::Final(StoreError::Source(error)))?;
                self.run(built.map(|built| built.body(file)), len)
            }
        };
        let answer = answer?;
        let (parts, body) = answer.into_parts();
        let status = parts.status.as_u16();
        let is_good = (200..300).contains(&status);
        let most = if is_good { request.most } else { REFUSAL_MAX };
        let told = body.content_length().unwrap_or(0).min(most);
        let mut bytes = Vec::with_capacity(told as usize);
        let mut reader = body.into_with_config().limit(most).reader();
        match reader.read_to_end(&mut bytes) {
            Ok(_) => {}
            // A refusal is understood without its end as well.
            Err(_) if !is_good => {}
            Err(error) => return Err(self.failure(ureq::Error::from(error))),
        }
        let refusal = if is_good { Refusal::default() } else { refusal(&String::from_utf8_lossy(&bytes)) };
        let response = Response { status, headers: parts.headers, body: bytes, refusal, is_repeated: false };
        self.judged(request.method, response)
    }

    /// The request with its signature.
    fn signed(
        &self,
        request: &Request<'_>,
        sums: Option<&(String, String)>,
    ) -> Result<ureq::http::request::Builder, Failure> {
        const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let body = sums.map_or(EMPTY, |(sha, _)| sha);
        let time = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
        let mut headers: Vec<(&str, &str)> =
            vec![("host", &self.host), ("x-amz-content-sha256", body), ("x-amz-date", &time)];
        if let Some(token) = &self.credentials.token {
            headers.push(("x-amz-security-token", token));
        }
        if let Some((_, md5)) = sums {
            headers.push(("content-md5", md5));
        }
        headers.extend(request.headers.iter().map(|(name, value)| (*name, value.as_str())));
        headers.sort_unstable();
        let Request { method, path, query, .. } = *request;
        let signed = Signed { method, path, query, headers: &headers, body };
        let authorization = authorization(&signed, &self.credentials, &self.region, &time);
        let question = if query.is_empty() { "" } else { "?" };
        let mut built =
            HttpRequest::builder().method(method).uri(format!("{}{path}{question}{query}", self.base));
        for (name, value) in headers.into_iter().filter(|(name, _)| *name != "host") {
            built = built.header(name, value);
        }
        built = built.header("authorization", authorization);
        if let Some(body) = request.body {
            built = built.header("content-length", body.len());
        }
        Ok(built)
    }

    fn run<B: AsSendBody>(
        &self,
        request: Result<Result<HttpRequest<B>, ureq::http::Error>, Failure>,
        bytes: u64,
    ) -> Result<ureq::http::Response<ureq::Body>, Failure> {
        let request = request?.map_err(|error| self.answer(&error.to_string()))?;
        let Timing { connect, stall, slowest, .. } = self.timing;
        let limit = connect + 2 * stall + Duration::from_secs(bytes.max(RECEIVED) / slowest.max(1));
        let request = self.agent.configure_request(request).timeout_global(Some(limit)).build();
        self.agent.run(request).map_err(|error| self.failure(error))
    }

    /// An error of the way to the store.
    fn failure(&self, error: ureq::Error) -> Failure {
        let passing = |why: String| Failure::Passing(why, Duration::ZERO);
        match error {
            ureq::Error::Timeout(_) => passing("it did not answer in time".to_owned()),
            ureq::Error::HostNotFound => passing("its name is not known".to_owned()),
            ureq::Error::Io(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof => passing("it closed the connection in the middle".to_owned()),
                // rustls wraps what is wrong with a certificate.
                io::ErrorKind::InvalidData => Failure::Final(self.untrusted(&error.to_string())),
                _ => passing(error.to_string()),
            },
            ureq::Error::BodyExceedsLimit(_) => self.answer("its answer is longer than was asked for"),
            ureq::Error::ConnectionFailed => passing("no connection could be made".to_owned()),
            ureq::Error::Rustls(error) => match error {
                rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_) => {
                    Failure::Final(self.untrusted(&error.to_string()))
                }
                error => passing(error.to_string()),
            },
            ureq::Error::Tls(what) => Failure::Final(self.untrusted(what)),
            error => self.answer(&error.to_string()),
        }
    }

    fn untrusted(&self, why: &str) -> StoreError {
        StoreError::Certificates(format!(
            "no TLS with {}: {why}; a certificate of your own is named with ca-file=FILE in the address, or AWS_CA_BUNDLE",
            self.place
        ))
    }

    fn answer(&self, why: &str) -> Failure {
        Failure::Final(StoreError::Answer { place: self.place.clone(), why: why.to_owned() })
    }

    /// What an answer means.
    fn judged(&self, method: &str, response: Response) -> Result<Response, Failure> {
        let Response { status, refusal: Refusal { code, message }, .. } = &response;
        let said = match (code.is_empty(), message.is_empty()) {
            (true, _) => format!("HTTP status {status}"),
            (false, true) => format!("{code} ({status})"),
            (false, false) => format!("{code} ({status}): {message}"),
        };
        let passing = || {
            let after = response.header("retry-after").and_then(|text| text.trim().parse().ok());
            let after = after.map_or(Duration::ZERO, Duration::from_secs);
            Failure::Passing(said.clone(), after.min(RETRY_AFTER_MAX))
        };
        let place = || self.place.clone();
        Err(match (*status, code.as_str()) {
            (200..=299 | 412 | 416, _) | (404, "NoSuchKey") => return Ok(response),
            // The answer to it has no body.
            (404, "") if method == "HEAD" => return Ok(response),
            (404, "NoSuchBucket") => {
                Failure::Final(StoreError::NoBucket { place: place(), bucket: String::new() })
            }
            (408 | 409 | 429 | 500 | 502 | 503 | 504, _)
            | (400, "RequestTimeout" | "BadDigest" | "XAmzContentSHA256Mismatch" | "IncompleteBody") => {
                passing()
            }
            (300..=399, _) => {
                let region = response.header("x-amz-bucket-region").unwrap_or_default();
                let hint = match region.is_empty() {
                    true => "the bucket lies elsewhere: correct endpoint and region".to_owned(),
                    false => format!(
                        "the bucket lies in the region {region}: say so with region={region} or AWS_REGION"
                    ),
                };
                self.answer(&hint)
            }
            (400, "AuthorizationHeaderMalformed") | (401 | 403, _) => {
                let hint = match code.as_str() {
                    "RequestTimeTooSkewed" => "; the clock of this machine is wrong, or the store's",
                    "SignatureDoesNotMatch" => "; the secret key is another one",
                    "InvalidAccessKeyId" => "; the store does not know the access key",
                    _ => "",
                };
                Failure::Final(StoreError::Denied { place: place(), why: format!("{said}{hint}") })
            }
            _ => self.answer(&said),
        })
    }
}

/// Certificates that are trusted.
fn roots(ca_file: Option<&std::path::Path>) -> Result<RootCerts, StoreError> {
    let certificates: Vec<Certificate<'static>> = match ca_file {
        Some(file) => {
            let shown = file.display();
            let wrong = |why: &str| StoreError::Certificates(format!("the certificates in {shown}: {why}"));
            let text =
                lunway_block::small_file::read(file, PEM_MAX).map_err(|error| wrong(&error.to_string()))?;
            let items = parse_pem(&text).map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Ok(Some(certificate)),
                Ok(_) => Ok(None),
                Err(error) => Err(wrong(&error.to_string())),
            });
            let found: Vec<_> = items.filter_map(Result::transpose).collect::<Result<_, _>>()?;
            if found.is_empty() {
                return Err(wrong("there is none"));
            }
            found
        }
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
        }
    };
    if certificates.is_empty() {
        return Err(StoreError::Certificates(
            "this machine trusts no certificates: install ca-certificates, or name a file with ca-file=FILE in the \
             address"
                .to_owned(),
        ));
    }
    Ok(RootCerts::from(certificates))
}

/// Returns `true` if `HOST[:PORT]` is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Between a half and all of a pause: many that failed at once do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_from_what_only_looks_so() {
        for host in ["localhost", "localhost:80", "127.0.0.1:9000", "127.9.9.9", "[::1]", "[::1]:9000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.com", "10.0.0.1", "127.0.0.1.example.com", "[2001:db8::1]", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
