//! Identity of this machine among others: its id, else its name.

use std::fs;
use std::path::Path;

/// Files that hold the machine's id (machine-id(5)); the second is where it was before systemd.
const MACHINE_ID_FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// The machine's id (machine-id(5)), 32 lower-case hexadecimal digits: as stable as the installation. `None` where
/// there is none, as in a container or in the image of a machine that has never started.
///
/// It is confidential: derive from it, by a hash, what others are to see.
pub fn machine_id() -> Option<String> {
    MACHINE_ID_FILES.iter().find_map(|file| read(Path::new(file)))
}

/// The machine's name in its network (uname(2)).
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let id = text.trim();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && id.bytes().any(|byte| byte != b'0')).then(|| id.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_is_read_as_one() {
        let file = std::env::temp_dir().join(format!("lunway-machine-id-{}", std::process::id()));
        assert_eq!(read(&file), None);
        for (text, id) in [
            ("", None),
            ("uninitialized\n", None),
            ("00000000000000000000000000000000\n", None),
            ("0123456789ABCDEF0123456789abcdef\n", Some("0123456789abcdef0123456789abcdef".to_owned())),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file), id, "{text}");
        }
        fs::remove_file(&file).unwrap();
    }
}
