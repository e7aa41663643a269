//! A small object store in this process, which obeys a test: it loses answers, cuts connections, lies.

#![allow(dead_code, reason = "each test takes a part of it")]

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Most bytes of an upload.
const BODY_MAX: usize = 256 << 20;

/// A request as the store got it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Without the bucket.
    pub(crate) key: String,
    pub(crate) query: BTreeMap<String, String>,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Counted from 0.
    pub(crate) number: usize,
}

impl Asked {
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.method.as_str(), "PUT" | "DELETE")
    }
}

/// What becomes of a request.
pub(crate) enum Answer {
    /// What a store does.
    Served,
    /// The same after some time.
    Late(Duration),
    /// Nothing is carried out: a status, a code of an error, and further headers.
    Refused(u16, &'static str, &'static str),
    /// Nothing is carried out, and the connection is closed.
    Cut,
    /// Everything is carried out, and the connection is closed.
    Lost,
    /// Everything is carried out, and of the answer only so many bytes are sent.
    Torn(usize),
    /// These bytes instead, until the other end has enough of them.
    Raw(Box<Writes>),
}

/// Writes to a connection.
type Writes = dyn Fn(&mut dyn Write) -> io::Result<()> + Send;

type Rule = Box<dyn Fn(&Asked) -> Answer + Send + Sync>;

#[derive(Clone)]
struct Object {
    bytes: Vec<u8>,
    etag: String,
    metadata: BTreeMap<String, String>,
}

#[derive(Default)]
struct Inner {
    objects: Mutex<BTreeMap<String, Object>>,
    rule: Mutex<Option<Arc<Rule>>>,
    requests: AtomicUsize,
    changes: AtomicUsize,
    versions: AtomicUsize,
    ignores_absent: AtomicBool,
    ignores_is: AtomicBool,
    knows_bare: AtomicBool,
    ended: AtomicBool,
}

/// The store; it ends when this is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    inner: Arc<Inner>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::over(|socket| Ok(Box::new(socket)))
    }

    /// With something between its sockets and HTTP.
    pub(crate) fn over(
        wrap: impl Fn(TcpStream) -> io::Result<Box<dyn Stream>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner::default());
        let (served, wrap) = (Arc::clone(&inner), Arc::new(wrap));
        thread::spawn(move || {
            for socket in listener.incoming() {
                if served.ended.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(socket), served, wrap) = (socket, Arc::clone(&served), Arc::clone(&wrap)) else {
                    continue;
                };
                let _ = socket.set_nodelay(true);
                thread::spawn(move || wrap(socket).and_then(|stream| served.connection(stream)));
            }
        });
        Self { address, inner }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on.
    pub(crate) fn rule(&self, rule: impl Fn(&Asked) -> Answer + Send + Sync + 'static) {
        self.inner.requests.store(0, Ordering::SeqCst);
        *lock(&self.inner.rule) = Some(Arc::new(Box::new(rule)));
    }

    pub(crate) fn serve(&self) {
        self.rule(|_| Answer::Served);
    }

    /// After so many further uploads and removals each request is cut, as for a process that was killed.
    pub(crate) fn cut_after(&self, changes: usize) {
        let left = AtomicUsize::new(changes);
        self.rule(move |asked| match asked.is_change() {
            true if left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok() =>
            {
                Answer::Served
            }
            false if left.load(Ordering::SeqCst) > 0 => Answer::Served,
            _ => Answer::Cut,
        });
    }

    /// Requests since the last rule.
    pub(crate) fn requests(&self) -> usize {
        self.inner.requests.load(Ordering::SeqCst)
    }

    /// Uploads and removals that were carried out.
    pub(crate) fn changes(&self) -> usize {
        self.inner.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn ignore_conditions(&self, absent: bool, is: bool) {
        self.inner.ignores_absent.store(absent, Ordering::SeqCst);
        self.inner.ignores_is.store(is, Ordering::SeqCst);
    }

    /// A version in a condition has no quotation marks.
    pub(crate) fn know_bare_versions(&self) {
        self.inner.knows_bare.store(true, Ordering::SeqCst);
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        lock(&self.inner.objects).keys().cloned().collect()
    }

    pub(crate) fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        lock(&self.inner.objects).get(key).map(|object| object.bytes.clone())
    }

    /// Changes an object behind the back of all, or makes it.
    pub(crate) fn set(&self, key: &str, bytes: &[u8]) {
        let etag = self.inner.version();
        let object = Object { bytes: bytes.to_vec(), etag, metadata: BTreeMap::new() };
        lock(&self.inner.objects).insert(key.to_owned(), object);
    }

    pub(crate) fn remove(&self, key: &str) {
        lock(&self.inner.objects).remove(key);
    }

    /// Another store with the same objects.
    pub(crate) fn copy(&self) -> Self {
        let other = Self::start();
        *lock(&other.inner.objects) = lock(&self.inner.objects).clone();
        let versions = self.inner.versions.load(Ordering::SeqCst);
        other.inner.versions.store(versions, Ordering::SeqCst);
        other
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::SeqCst);
        // The listener looks when there is a connection.
        let _ = TcpStream::connect(self.address);
    }
}

/// A connection.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Inner {
    fn version(&self) -> String {
        format!("\"v{}\"", self.versions.fetch_add(1, Ordering::SeqCst))
    }

    fn connection(&self, stream: Box<dyn Stream>) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(asked) = self.request(&mut stream)? {
            let rule = lock(&self.rule).clone();
            let answer = rule.map_or(Answer::Served, |rule| rule(&asked));
            let socket = stream.get_mut();
            match answer {
                Answer::Served => socket.write_all(&self.serve(&asked))?,
                Answer::Late(time) => {
                    thread::sleep(time);
                    socket.write_all(&self.serve(&asked))?;
                }
                Answer::Refused(status, code, headers) => {
                    socket.write_all(&refused(status, code, headers))?;
                }
                Answer::Cut => return Ok(()),
                Answer::Lost => {
                    self.serve(&asked);
                    return Ok(());
                }
                Answer::Torn(len) => {
                    let answer = self.serve(&asked);
                    socket.write_all(&answer[..len.min(answer.len())])?;
                    return socket.flush();
                }
                Answer::Raw(write) => {
                    write(socket)?;
                    return socket.flush();
                }
            }
            socket.flush()?;
        }
        Ok(())
    }

    fn request(&self, stream: &mut impl BufRead) -> io::Result<Option<Asked>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut words = lines[0].split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |line: &String| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers: BTreeMap<_, _> = lines[1..].iter().filter_map(header).collect();
        let len: usize = headers.get("content-length").map_or(0, |len| len.parse().unwrap());
        assert!(len <= BODY_MAX);
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Ok(Some(Asked {
            method: method.to_owned(),
            key: unescaped(key),
            query: pairs.map(|(name, value)| (name.to_owned(), unescaped(value))).collect(),
            headers,
            body,
            number: self.requests.fetch_add(1, Ordering::SeqCst),
        }))
    }

    /// What a store answers.
    fn serve(&self, asked: &Asked) -> Vec<u8> {
        let mut objects = lock(&self.objects);
        let found = objects.get(&asked.key).cloned();
        match asked.method.as_str() {
            "PUT" => {
                let is_refused = match (asked.headers.get("if-none-match"), asked.headers.get("if-match")) {
                    (Some(_), _) => found.is_some() && !self.ignores_absent.load(Ordering::SeqCst),
                    (_, Some(etag)) => {
                        let is_bare = self.knows_bare.load(Ordering::SeqCst);
                        let known = |found: &Object| match is_bare {
                            true => found.etag.trim_matches('"') == etag,
                            false => found.etag == *etag,
                        };
                        !found.as_ref().is_some_and(known) && !self.ignores_is.load(Ordering::SeqCst)
                    }
                    _ => false,
                };
                if is_refused {
                    return refused(412, "PreconditionFailed", "");
                }
                let etag = self.version();
                let metadata = asked.headers.iter().filter(|(name, _)| name.starts_with("x-amz-meta-"));
                let metadata = metadata.map(|(name, value)| (name.clone(), value.clone())).collect();
                let object = Object { bytes: asked.body.clone(), etag: etag.clone(), metadata };
                objects.insert(asked.key.clone(), object);
                self.changes.fetch_add(1, Ordering::SeqCst);
                answer(200, &format!("ETag: {etag}\r\n"), b"")
            }
            "DELETE" => {
                objects.remove(&asked.key);
                self.changes.fetch_add(1, Ordering::SeqCst);
                answer(204, "", b"")
            }
            "GET" if asked.key.is_empty() => listing(&objects, &asked.query),
            _ => match found {
                None => refused(404, "NoSuchKey", ""),
                Some(object) => read(asked, &object),
            },
        }
    }
}

fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits: Vec<u8> = rest.by_ref().take(2).collect();
            bytes.push(u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let len = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut bytes = format!("HTTP/1.1 {status} Status\r\n{len}{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn refused(status: u16, code: &str, headers: &str) -> Vec<u8> {
    let body = match code {
        "" => String::new(),
        code => format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>so says a test</Message></Error>"
        ),
    };
    answer(status, headers, body.as_bytes())
}

fn read(asked: &Asked, object: &Object) -> Vec<u8> {
    let mut headers = format!("ETag: {}\r\n", object.etag);
    for (name, value) in &object.metadata {
        headers += &format!("{name}: {value}\r\n");
    }
    let total = object.bytes.len();
    if asked.method == "HEAD" {
        return format!("HTTP/1.1 200 Status\r\nContent-Length: {total}\r\n{headers}\r\n").into_bytes();
    }
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, last)) = range else {
        return answer(200, &headers, &object.bytes);
    };
    let (start, last): (usize, usize) = (start.parse().unwrap(), last.parse().unwrap());
    if start >= total {
        return refused(416, "InvalidRange", "");
    }
    let end = last.saturating_add(1).min(total);
    headers += &format!("Content-Range: bytes {start}-{}/{total}\r\n", end - 1);
    answer(206, &headers, &object.bytes[start..end])
}

fn listing(objects: &BTreeMap<String, Object>, query: &BTreeMap<String, String>) -> Vec<u8> {
    let of = |name: &str| query.get(name).map_or("", String::as_str);
    let (prefix, after, most) =
        (of("prefix"), of("continuation-token"), of("max-keys").parse().unwrap_or(1000));
    // Keys, and folders for those with a slash behind the prefix.
    let mut names: Vec<(String, bool)> = objects
        .keys()
        .filter(|key| key.starts_with(prefix))
        .map(|key| match key[prefix.len()..].split_once('/') {
            Some((folder, _)) if of("delimiter") == "/" => (format!("{prefix}{folder}/"), true),
            _ => (key.clone(), false),
        })
        .filter(|(name, _)| name.as_str() > after)
        .collect();
    names.sort();
    names.dedup();
    let is_truncated = names.len() > most;
    names.truncate(most);
    let mut xml = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
    for (name, is_folder) in &names {
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        xml += &match is_folder {
            true => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            false => format!("<Contents><Key>{name}</Key></Contents>"),
        };
    }
    if let Some((last, _)) = names.last().filter(|_| is_truncated) {
        xml += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    answer(200, "", (xml + "</ListBucketResult>").as_bytes())
}
