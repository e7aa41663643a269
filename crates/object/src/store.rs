//! The client of one bucket.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::address::{Address, Style, escaped, escaped_path};
use crate::credentials::Settings;
use crate::error::StoreError;
use crate::exchange::{Body, Exchange, Request, Response, is_loopback};
use crate::listing::{Listing, page};
use crate::sign::hex;

/// Region of signatures where none is named: what AWS's own programs and other stores take.
const REGION: &str = "us-east-1";
/// Most bytes of an upload (AWS, "Uploading objects").
const UPLOAD_MAX: u64 = 5 << 30;
/// Most bytes of a page of a listing: 1000 keys of 1024 bytes, each escaped, with what else is said of it.
const PAGE_MAX: u64 = 16 << 20;
/// Most keys of a listing: the packs of 128 TiB.
const KEYS_MAX: usize = 1 << 22;
/// Pages of a listing from which on it must have told [`PER_PAGE_MIN`] keys in each, of the thousand that there may be.
const PAGES_SPARSE: usize = 64;
const PER_PAGE_MIN: usize = 100;
/// The mark of an upload, by which it is recognised when its answer was lost.
const MARK: &str = "x-amz-meta-lunway-upload";

/// Version of an object, as the store tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag(String);

/// When an upload is carried out.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// Always.
    Always,
    /// If there is no such object.
    Absent,
    /// If the object is still this version.
    Is(&'a Etag),
}

/// A part of an object.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its bytes: fewer than were asked for where the object ends.
    pub bytes: Vec<u8>,
    /// Bytes of the whole object.
    pub total: u64,
}

/// Objects of a bucket. Calls block and come from any thread; each ends within the limits of its [`Timing`].
///
/// [`Timing`]: crate::Timing
pub struct Store {
    exchange: Exchange,
    bucket: String,
    is_virtual: bool,
    /// Conditions were seen to be obeyed.
    is_proven: Mutex<bool>,
    /// The store knows a version in a condition without its quotation marks alone, as Ceph's gateway 16 does.
    is_bare: AtomicBool,
}

impl Store {
    /// Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Where there is no TLS although the endpoint is another machine, or certificates cannot be read.
    pub fn open(address: &Address, settings: &Settings) -> Result<Self, StoreError> {
        let region = address.region.clone().or_else(|| settings.region.clone());
        let region = region.unwrap_or_else(|| REGION.to_owned());
        let own = address.endpoint.clone().or_else(|| settings.endpoint.clone());
        let bucket = address.bucket().to_owned();
        // A certificate for *.HOST is none for a name with further dots.
        let usual = if own.is_none() && !bucket.contains('.') { Style::Virtual } else { Style::Path };
        let is_virtual = address.style.unwrap_or(usual) == Style::Virtual;
        let endpoint = own.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
        if scheme != "https" && !is_loopback(host) && !address.is_plain_http_accepted {
            return Err(StoreError::PlainHttp(endpoint));
        }
        let port = if scheme == "https" { ":443" } else { ":80" };
        let host = host.strip_suffix(port).unwrap_or(host);
        let host = if is_virtual { format!("{bucket}.{host}") } else { host.to_owned() };
        let ca_file = address.ca_file.as_deref().or(settings.ca_file.as_deref());
        let credentials = settings.credentials.clone();
        let exchange = Exchange::new(
            format!("{scheme}://{host}"),
            endpoint,
            region,
            credentials,
            ca_file,
            settings.timing,
        )?;
        Ok(Self {
            exchange,
            bucket,
            is_virtual,
            is_proven: Mutex::new(false),
            is_bare: AtomicBool::new(false),
        })
    }

    /// The endpoint, for people.
    pub fn place(&self) -> &str {
        self.exchange.place()
    }

    /// An object, for people.
    pub fn show(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket)
    }

    fn path(&self, key: &str) -> String {
        match self.is_virtual {
            true => format!("/{}", escaped_path(key)),
            false if key.is_empty() => format!("/{}", self.bucket),
            false => format!("/{}/{}", self.bucket, escaped_path(key)),
        }
    }

    fn send(&self, request: &Request<'_>) -> Result<Response, StoreError> {
        self.exchange.send(request).map_err(|error| match error {
            StoreError::NoBucket { place, .. } => StoreError::NoBucket { place, bucket: self.bucket.clone() },
            error => error,
        })
    }

    fn answer<T>(&self, why: impl Into<String>) -> Result<T, StoreError> {
        Err(StoreError::Answer { place: self.place().to_owned(), why: why.into() })
    }

    /// Reads a range of an object, as far as it goes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Absent`]; [`StoreError::Short`] if it ends before the range begins.
    pub fn get(&self, key: &str, range: Range<u64>) -> Result<Part, StoreError> {
        let path = self.path(key);
        let wanted = range.end.saturating_sub(range.start);
        let header = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let request = Request {
            method: "GET",
            path: &path,
            query: "",
            headers: vec![("range", header)],
            body: None,
            most: wanted,
        };
        let response = self.send(&request)?;
        match response.status {
            206 => {
                let told = response.header("content-range").and_then(content_range);
                let Some((start, end, total)) = told else {
                    return self.answer("a part of an object has no Content-Range");
                };
                let expected = range.end.min(total);
                if start != range.start || end != expected || response.body.len() as u64 != end - start {
                    return self.answer("a part of an object is another one than was asked for");
                }
                Ok(Part { bytes: response.body, total })
            }
            // The whole object, which is no longer than the range.
            200 if range.start == 0 => {
                let total = response.body.len() as u64;
                Ok(Part { bytes: response.body, total })
            }
            200 => self.answer("it does not serve ranges"),
            404 => Err(StoreError::Absent(self.show(key))),
            // Of an object without bytes no range is served.
            416 if range.start == 0 => Ok(Part { bytes: Vec::new(), total: 0 }),
            416 => Err(StoreError::Short(self.show(key))),
            status => self.answer(format!("HTTP status {status} for a read")),
        }
    }

    /// Writes an object, whole or not at all; it is durable, and others see it, when this returns.
    ///
    /// # Errors
    ///
    /// [`StoreError::Condition`], [`StoreError::TooLong`].
    pub fn put(&self, key: &str, body: Body<'_>, condition: Condition<'_>) -> Result<Etag, StoreError> {
        if body.len() > UPLOAD_MAX {
            return Err(StoreError::TooLong { object: self.show(key), bytes: body.len() });
        }
        let path = self.path(key);
        let mark = mark()?;
        let mut headers = vec![(MARK, mark.clone())];
        match condition {
            Condition::Always => {}
            Condition::Absent => headers.push(("if-none-match", "*".to_owned())),
            Condition::Is(Etag(etag)) if self.is_bare.load(Ordering::Relaxed) => {
                headers.push(("if-match", etag.trim_matches('"').to_owned()));
            }
            Condition::Is(Etag(etag)) => headers.push(("if-match", etag.clone())),
        }
        let request =
            Request { method: "PUT", path: &path, query: "", headers, body: Some(body), most: 64 << 10 };
        let response = self.send(&request)?;
        match response.status {
            200..300 => match response.header("etag") {
                Some(etag) => Ok(Etag(etag.to_owned())),
                None => self.answer("an upload has no ETag"),
            },
            404 | 412 if !matches!(condition, Condition::Always) => {
                // Maybe by an attempt before, whose answer was lost.
                if response.is_repeated
                    && let Some((marked, etag)) = self.marked(&path)?
                    && marked == mark
                {
                    return Ok(etag);
                }
                Err(StoreError::Condition(self.show(key)))
            }
            status => self.answer(format!("HTTP status {status} for an upload")),
        }
    }

    /// The mark and the version of an object.
    fn marked(&self, path: &str) -> Result<Option<(String, Etag)>, StoreError> {
        let request = Request { method: "HEAD", path, query: "", headers: Vec::new(), body: None, most: 0 };
        let response = self.send(&request)?;
        let mark = response.header(MARK).map(str::to_owned);
        let etag = response.header("etag").map(|etag| Etag(etag.to_owned()));
        Ok(mark.zip(etag).filter(|_| response.status == 200))
    }

    /// Removes an object; none is no error.
    ///
    /// # Errors
    ///
    /// What the store says.
    pub fn remove(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key);
        let request = Request {
            method: "DELETE",
            path: &path,
            query: "",
            headers: Vec::new(),
            body: None,
            most: 64 << 10,
        };
        match self.send(&request)?.status {
            200..300 | 404 => Ok(()),
            status => self.answer(format!("HTTP status {status} for a removal")),
        }
    }

    /// Lists keys with a prefix: those with a slash behind it as folders.
    ///
    /// # Errors
    ///
    /// What the store says, or that there are more than 4 million, or no end.
    pub fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let path = if self.is_virtual { "/".to_owned() } else { self.path("") };
        let mut all = Listing::default();
        let (mut token, mut pages) = (None::<String>, 0);
        loop {
            if pages >= PAGES_SPARSE && all.keys.len() + all.folders.len() < pages * PER_PAGE_MIN {
                return self
                    .answer(format!("a listing of {} has no end, or nearly empty pages", self.show(prefix)));
            }
            let page = self.page(&path, prefix, token.as_deref())?;
            pages += 1;
            let is_empty = page.listing.keys.is_empty() && page.listing.folders.is_empty();
            let ours = |key: &String| key.starts_with(prefix);
            all.keys.extend(page.listing.keys.into_iter().filter(ours));
            all.folders.extend(page.listing.folders.into_iter().filter(ours));
            if all.keys.len() + all.folders.len() > KEYS_MAX {
                return self.answer(format!("{} has more than {KEYS_MAX} objects", self.show(prefix)));
            }
            match page.next {
                None => return Ok(all),
                Some(next) if is_empty || token.as_ref() == Some(&next) => {
                    return self.answer(format!("a listing has no end, at {next:.60}"));
                }
                next => token = next,
            }
        }
    }

    fn page(
        &self,
        path: &str,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<crate::listing::Page, StoreError> {
        let token = token.map_or_else(String::new, |token| format!("continuation-token={}&", escaped(token)));
        let query = format!("{token}delimiter=%2F&list-type=2&max-keys=1000&prefix={}", escaped(prefix));
        let request =
            Request { method: "GET", path, query: &query, headers: Vec::new(), body: None, most: PAGE_MAX };
        let response = self.send(&request)?;
        if response.status != 200 {
            return self.answer(format!("HTTP status {} for a listing", response.status));
        }
        let text = str::from_utf8(&response.body).map_err(|error| error.to_string());
        text.and_then(page).or_else(|why| self.answer(format!("a listing cannot be read: {why}")))
    }

    /// Sees to it, once, that the store obeys conditions: uploads that it has to refuse, of an object of a name that
    /// begins with `prefix`, which is removed again.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unconditional`], or what the store says.
    pub fn prove_conditions(&self, prefix: &str) -> Result<(), StoreError> {
        let mut is_proven = self.is_proven.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_proven {
            return Ok(());
        }
        let key = format!("{prefix}{}", mark()?);
        let first = self.put(&key, Body::Bytes(b"1"), Condition::Absent)?;
        let tried = self.try_conditions(&key, &first);
        // Another process that finds it takes it for no file of its own.
        let removed = self.remove(&key);
        tried.and(removed)?;
        *is_proven = true;
        Ok(())
    }

    fn try_conditions(&self, key: &str, first: &Etag) -> Result<(), StoreError> {
        let refuses = |body: &'static [u8], condition: Condition<'_>, name: &'static str| {
            match self.put(key, Body::Bytes(body), condition) {
                Err(StoreError::Condition(_)) => Ok(()),
                // What is no condition to the store may be a mistake in the request.
                Ok(_) | Err(StoreError::Answer { .. }) => {
                    Err(StoreError::Unconditional { place: self.place().to_owned(), condition: name })
                }
                Err(error) => Err(error),
            }
        };
        refuses(b"2", Condition::Absent, "If-None-Match")?;
        let second = match self.put(key, Body::Bytes(b"3"), Condition::Is(first)) {
            Err(StoreError::Condition(_)) => {
                self.is_bare.store(true, Ordering::Relaxed);
                self.put(key, Body::Bytes(b"3"), Condition::Is(first))?
            }
            second => second?,
        };
        refuses(b"4", Condition::Is(first), "If-Match")?;
        self.remove(key)?;
        refuses(b"5", Condition::Is(&second), "If-Match")
    }
}

/// A random mark.
fn mark() -> Result<String, StoreError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Random(std::io::Error::other(error)))?;
    Ok(hex(&bytes))
}

/// `bytes START-LAST/TOTAL` as start, end and total.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, total): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    let end = last.checked_add(1)?;
    (start < end && end <= total).then_some((start, end, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_believed_if_it_can_be() {
        assert_eq!(content_range("bytes 0-9/20"), Some((0, 10, 20)));
        for text in
            ["bytes 0-9/*", "bytes 5-4/20", "bytes 0-20/20", "0-9/20", "bytes 0-18446744073709551615/20"]
        {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
