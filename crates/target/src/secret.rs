//! CHAP secrets in files.

use std::io::{self, Read};
use std::path::Path;

use lunway_block::small_file;
use lunway_iscsi::chap::{Secret, SecretFileError};

/// Reason why a file holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Cannot be read.
    #[error("cannot read it: {0}")]
    Unreadable(#[from] io::Error),
    /// Nothing in it, or more than a secret.
    #[error("its only line must be the secret, 12 to 16 bytes for Windows initiators: {0}")]
    Content(#[from] SecretFileError),
}

/// Reads a file that holds a CHAP secret, as [`Secret::from_file`] says.
// RFC 7143 [9.2.1-3, 9.2.1-6]
pub(crate) fn read(path: &Path) -> Result<Secret, SecretError> {
    let file = small_file::open(path)?;
    let mut bytes = Vec::with_capacity(Secret::FILE_LEN_MAX + 1);
    // One byte more than may be: enough to see that it is too long.
    file.take(Secret::FILE_LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
    let secret = Secret::from_file(&bytes);
    bytes.fill(0);
    Ok(secret?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_back(content: &[u8]) -> Result<Secret, SecretError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        read(file.path())
    }

    // shows RFC 7143 [9.2.1-3]
    #[test]
    fn line_ends_are_not_part_of_the_secret() {
        for content in
            [&b"sesame open now"[..], b"sesame open now\n", b"sesame open now\r\n", b"sesame open now\n\n"]
        {
            assert_eq!(read_back(content).unwrap(), Secret::new("sesame open now").unwrap());
        }
    }

    #[test]
    fn a_file_without_a_secret_is_refused() {
        assert!(matches!(read_back(b"\n"), Err(SecretError::Content(SecretFileError::Length(_)))));
        assert!(matches!(read_back(&[b'x'; 300]), Err(SecretError::Content(_))));
        assert!(matches!(read(Path::new("/nonexistent/secret")), Err(SecretError::Unreadable(_))));
    }
}
