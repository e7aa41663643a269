//! The token that opens the API on TCP.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lunway_block::small_file;
use subtle::ConstantTimeEq;

/// Fewest bytes: 16 random letters and digits are 95 bits.
const LEN_MIN: usize = 16;
/// Most bytes.
const LEN_MAX: usize = 1024;

/// Reason why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// Too short or too long, or not printable.
    #[error(
        "the only line of {} must be a token of {LEN_MIN} to {LEN_MAX} visible ASCII characters: make one with \
         `openssl rand -hex 32`",
        .0.display()
    )]
    Unfit(PathBuf),
    /// TCP without a token.
    #[error("the API on TCP needs one: otherwise every client that can connect could manage this daemon")]
    Missing,
}

/// A bearer token in a file. It is read for each request, so that a new one counts as soon as the file has it; where
/// the file cannot be read, no client is let in.
pub(crate) struct Token {
    file: PathBuf,
}

impl Token {
    /// Makes sure that the file holds a token now.
    pub(crate) fn in_file(file: &Path) -> Result<Self, TokenError> {
        read_token(file)?;
        Ok(Self { file: file.to_owned() })
    }

    /// Tells whether a token is this one. Takes the same time wherever the first difference is.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        match read_token(&self.file) {
            Ok(token) => token.as_bytes().ct_eq(given).into(),
            Err(error) => {
                tracing::error!("the API on TCP refuses all requests: {error}");
                false
            }
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("file", &self.file).finish()
    }
}

/// Reads a file whose only line is a token.
pub(crate) fn read_token(file: &Path) -> Result<String, TokenError> {
    let mut text = String::new();
    let read =
        small_file::open(file).and_then(|open| open.take(LEN_MAX as u64 + 3).read_to_string(&mut text));
    if let Err(source) = read {
        return Err(TokenError::Unreadable { file: file.to_owned(), source });
    }
    let token = text.trim_end();
    let fits =
        (LEN_MIN..=LEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(token.to_owned()) } else { Err(TokenError::Unfit(file.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_opens_and_a_new_one_counts_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        let token = Token::in_file(file.path()).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [&b""[..], b"0123456789abcdeF", b"0123456789abcde", b"0123456789abcdef0"] {
            assert!(!token.is(wrong));
        }
        std::fs::write(file.path(), "fedcba9876543210\n").unwrap();
        assert!(token.is(b"fedcba9876543210") && !token.is(b"0123456789abcdef"));
        std::fs::remove_file(file.path()).unwrap();
        assert!(!token.is(b"fedcba9876543210") && !token.is(b""));
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["", "short", "two words and more of them", &"x".repeat(2000)] {
            std::fs::write(file.path(), text).unwrap();
            assert!(matches!(Token::in_file(file.path()), Err(TokenError::Unfit(_))), "{text}");
        }
    }
}
