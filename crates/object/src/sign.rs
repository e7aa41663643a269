//! AWS Signature Version 4, in a header ("Authenticating Requests: Using the Authorization Header", Amazon S3 API
//! reference).

use std::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::credentials::Credentials;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What is signed. Headers come with names in lower case, and values without spaces at their ends.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// Escaped.
    pub(crate) path: &'a str,
    /// Escaped pairs, in the order of their names.
    pub(crate) query: &'a str,
    /// All that are signed, `host` among them, in the order of their names.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body, hexadecimal.
    pub(crate) body: &'a str,
}

fn mac(key: &[u8], text: &str) -> Zeroizing<[u8; 32]> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("a key of HMAC has any length");
    mac.update(text.as_bytes());
    Zeroizing::new(mac.finalize().into_bytes().into())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Value of the header `Authorization`; `time`: `YYYYMMDDTHHMMSSZ`.
pub(crate) fn authorization(
    signed: &Signed<'_>,
    credentials: &Credentials,
    region: &str,
    time: &str,
) -> String {
    let day = time.get(..8).unwrap_or_default();
    let names = signed.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let mut canonical = format!("{}\n{}\n{}\n", signed.method, signed.path, signed.query);
    for (name, value) in signed.headers {
        let _ = writeln!(canonical, "{name}:{value}");
    }
    let _ = write!(canonical, "\n{names}\n{}", signed.body);
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&Sha256::digest(&canonical)));
    let secret = Zeroizing::new(format!("AWS4{}", credentials.secret.as_str()));
    let key =
        [day, region, "s3", "aws4_request"].iter().fold(None, |key: Option<Zeroizing<[u8; 32]>>, part| {
            Some(mac(key.as_ref().map_or(secret.as_bytes(), |key| &key[..]), part))
        });
    let signature = mac(key.as_ref().map_or(&[], |key| &key[..]), &text);
    format!(
        "{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={}",
        credentials.id,
        hex(&*signature)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The examples of Amazon's documentation.
    fn signature(signed: &Signed<'_>) -> String {
        let own = Credentials::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None);
        let text = authorization(signed, &own, "us-east-1", "20130524T000000Z");
        text.rsplit_once("Signature=").unwrap().1.to_owned()
    }

    #[test]
    fn the_signatures_of_amazons_examples_come_out() {
        let get = Signed {
            method: "GET",
            path: "/test.txt",
            query: "",
            headers: &[
                ("host", "examplebucket.s3.amazonaws.com"),
                ("range", "bytes=0-9"),
                ("x-amz-content-sha256", EMPTY),
                ("x-amz-date", "20130524T000000Z"),
            ],
            body: EMPTY,
        };
        assert_eq!(signature(&get), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        let body = hex(&Sha256::digest(b"Welcome to Amazon S3."));
        let put = Signed {
            method: "PUT",
            path: "/test%24file.text",
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", &body),
                ("x-amz-date", "20130524T000000Z"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            body: &body,
        };
        assert_eq!(signature(&put), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
        let list = Signed {
            method: "GET",
            path: "/",
            query: "max-keys=2&prefix=J",
            headers: &[
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", EMPTY),
                ("x-amz-date", "20130524T000000Z"),
            ],
            body: EMPTY,
        };
        assert_eq!(signature(&list), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    }
}
