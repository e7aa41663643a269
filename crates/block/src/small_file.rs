//! Small files that people name: configurations, secrets, reports.
//!
//! A name that is given by mistake may lead to anything: a disk image of terabytes, a pipe without a writer,
//! `/dev/zero`. A reader of a small file neither waits for one of these nor takes it into memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, makedev};

/// Opens a regular file for reading, without waiting.
///
/// Beside these, a pipe that this process was given is opened (`/dev/stdin`, or `<(…)` of a shell): it has a writer,
/// and ends with that. So is `/dev/null`, which is an empty file. A pipe that has a name in a file system is refused,
/// because opening it waits for a writer that may never come.
///
/// # Errors
///
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for what else the name leads to; an error of the operating system.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    // What has a name in a file system can be found by its whole path.
    let is_given = kind.is_fifo() && fs::canonicalize(path).is_err();
    let is_null = kind.is_char_device() && metadata.rdev() == makedev(1, 3);
    if !(kind.is_file() || is_given || is_null) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if is_given {
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// Reads all of a small file.
///
/// # Errors
///
/// As [`open`]; [`FileTooLarge`](io::ErrorKind::FileTooLarge) if the file has more than `most` bytes, of which none is
/// read if the file system knows that.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let known = file.metadata()?.len();
    let mut bytes = Vec::new();
    if known <= most {
        bytes.reserve_exact(usize::try_from(known).unwrap_or_default() + 1);
        // It may grow, and a pipe tells no length.
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if known > most || bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {}", limit(most))));
    }
    Ok(bytes)
}

/// Reads all of a small file that holds text in UTF-8.
///
/// # Errors
///
/// As [`read`]; [`InvalidData`](io::ErrorKind::InvalidData) if it holds other bytes.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, most)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn limit(most: u64) -> String {
    match most {
        mib if mib % (1 << 20) == 0 => format!("{} MiB", mib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{} KiB", kib >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// A folder of this test alone, which is removed.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lunway-small-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_read_up_to_the_limit_and_no_further() {
        let folder = Folder::new("limit");
        let path = folder.0.join("file");
        fs::write(&path, "12345678").unwrap();
        assert_eq!(read_text(&path, 8).unwrap(), "12345678");
        let error = read(&path, 7).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::FileTooLarge, "it has more than 7 bytes")
        );
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 4 << 20).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 4 MiB");
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 8).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read(&folder.0.join("none"), 8).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = Folder::new("kind");
        let pipe = folder.0.join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.0.as_path()] {
            let error = read(path, 8).unwrap_err();
            assert_eq!(error.to_string(), "it is not a regular file", "{}", path.display());
        }
        assert_eq!(read(Path::new("/dev/null"), 8).unwrap(), b"");
    }

    #[test]
    fn a_pipe_that_the_process_was_given_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let written = std::thread::spawn(move || {
            writer.write_all(b"first ").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            writer.write_all(b"last").unwrap();
        });
        assert_eq!(read_text(&path, 64).unwrap(), "first last");
        written.join().unwrap();
    }
}
