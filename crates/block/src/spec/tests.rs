//! Tests of the grammar.

use super::*;
use proptest::prelude::*;

#[test]
fn every_form_of_the_grammar_is_read_and_printed_back() {
    for text in [
        "ram:64M",
        "null:4T",
        "/dev/sdb",
        "disk.img",
        "./ram:4G",
        "file:ram:4G",
        "file:strange.vhdx",
        "raw:disk.qcow2",
        "raw:ram:4G",
        "stats:raw:/dev/sdb?cache=none",
        "raw:odd?cache=none?cache=writeback",
        "disk.img?cache=none",
        "/dev/sdb?cache=none",
        "file:ram:4G?cache=none",
        "file:strange.vhdx?cache=none",
        "odd?cache=none?cache=writeback",
        "folder?cache=x/disk.img?cache=none",
        "readonly:disk.img?cache=none",
        "disk.VHDX",
        "child.avhdx",
        "vhdx:no-extension",
        "disk.vhd",
        "child.avhd",
        "vhd:no-extension",
        "disk.qcow2",
        "qcow2:disk.vhd",
        "vhd:disk.qcow2",
        "vhdx:iscsi://san.example/iqn.2026-11.com.example:disk/3",
        "vhdx:readonly:ram:1G",
        "vhdx:file:plain.img",
        "vhdx:vhdx:disk.vhdx",
        "vhdx:a/b:c",
        "san/paths.toml",
        "disk7-paths.toml",
        "paths:disk7.toml",
        "file:paths.toml",
        "iscsi://10.0.0.1:3260/iqn.2026-01.example:disk/0?portal=10.0.1.1:3260",
        "rbd:rbd/lun0",
        "rbd:backup:pool/space/image@monday",
        "rbd:rbd/lun0?conf=/etc/ceph/a.conf&id=lunway&keyring=k&timeout=10s&break_lock=10.0.0.1:0/77&share=a",
        "readonly:rbd:rbd/lun0",
        "delay:200us:ram:1G",
        "rate:100M:disk.img",
        "fault:read=0.01:ram:1M",
        "readonly:stats:delay:5ms:rate:1M:fault:write@1M-2M,seed=7:vhdx:x",
    ] {
        let spec = DeviceSpec::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(spec.to_string(), text);
    }
    assert_eq!(DeviceSpec::parse("file:a.img"), DeviceSpec::parse("a.img"));
    assert_eq!(DeviceSpec::parse("a.img?cache=writeback"), DeviceSpec::parse("a.img"));
    let cached = |text: &str| match DeviceSpec::parse(text) {
        Ok(DeviceSpec::File { path, cache, .. }) => (path.display().to_string(), cache),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(cached("a.img"), ("a.img".to_owned(), FileCache::WriteBack));
    assert_eq!(cached("a.img?cache=none"), ("a.img".to_owned(), FileCache::None));
    assert_eq!(DeviceSpec::parse("vhdx:a.vhdx"), DeviceSpec::parse("a.vhdx"));
}

#[test]
fn errors_name_what_was_wrong_and_what_is_expected() {
    for (text, part) in [
        ("", "a device is missing: expected a path or one of iscsi://"),
        ("readonly:", "a device is missing behind `readonly:`"),
        ("delay:5ms", "a device is missing behind `delay:`"),
        ("rams:4G", "`rams:` is not a kind of device"),
        ("http://u%s@host/", "`http:` is not a kind"),
        ("ram:", "in `ram:SIZE`: `` is not a size"),
        ("ram:4X", "`4X` is not a size"),
        ("ram", "`ram` is written ram:SIZE"),
        ("readonly:null", "`null` is written null:SIZE"),
        ("null:0", "must not be 0"),
        ("rate:0B:ram:1M", "must not be 0"),
        ("rate:50:ram:1M", "such as 50M"),
        ("delay:5:ram:1M", "`5` is not a duration"),
        ("fault:reed:ram:1M", "in `fault:SPEC:DEVICE`"),
        ("file:", "`file:` needs a path"),
        ("raw:", "`raw:` needs a path"),
        ("paths:", "`paths:` needs a path"),
        ("?cache=none", "`file:` needs a path"),
        ("a.img?cache=nine", "none or writeback is expected"),
        ("a.vhdx?cache=none", "which a.vhdx is not"),
        ("a.qcow2?cache=none", "which a.qcow2 is not"),
        ("vhd:", "`vhd:` needs a path"),
        ("iscsi:host", "iscsi://[user"),
        ("rbd:image", "POOL[/NAMESPACE]/IMAGE"),
        ("rbd:a/b/c/d", "POOL[/NAMESPACE]/IMAGE"),
        ("rbd:pool/@snap", "POOL[/NAMESPACE]/IMAGE"),
        ("rbd:pool/image@a@b", "POOL[/NAMESPACE]/IMAGE"),
        ("rbd::pool/image", "POOL[/NAMESPACE]/IMAGE"),
        ("rbd:pool/image?key=secret", "one of conf, id, keyring"),
        ("rbd:pool/image?id=", "one of conf, id, keyring"),
        ("rbd:pool/image?timeout=soon", "timeout=TIME"),
        ("rbd:pool/image?timeout=0s", "whole seconds"),
        ("rbd:pool/image?timeout=500ms", "whole seconds"),
    ] {
        let error = DeviceSpec::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_back_end_is_found_through_all_decorators() {
    let mut spec = DeviceSpec::parse("stats:fault:read:rate:1M:readonly:delay:1ms:ram:1M").unwrap();
    assert_eq!(spec.leaf(), &DeviceSpec::Ram { size: 1 << 20 });
    *spec.leaf_mut() = DeviceSpec::Null { size: 1 << 21 };
    assert_eq!(spec.leaf(), &DeviceSpec::Null { size: 1 << 21 });
    assert_eq!(spec.leaf().inner(), None);
    assert_eq!(spec.inner().map(DeviceSpec::leaf), Some(spec.leaf()));
}

#[test]
fn a_file_that_was_opened_is_named_as_raw_and_other_devices_stay() {
    let named = |text: &str| DeviceSpec::parse(text).unwrap().with_format().to_string();
    assert_eq!(named("readonly:a.img?cache=none"), "readonly:raw:a.img?cache=none");
    assert_eq!(named("raw:a.img"), "raw:a.img");
    for other in ["ram:1M", "a.vhdx", "san/paths.toml", "iscsi://h/iqn.a:b/0"] {
        assert_eq!(named(other), other);
    }
}

#[test]
fn a_relative_file_is_found_from_a_folder_and_an_absolute_one_stays() {
    let named = |text: &str| DeviceSpec::parse(text).unwrap().in_folder(Path::new("/etc/lunway")).to_string();
    assert_eq!(named("stats:disk.img?cache=none"), "stats:/etc/lunway/disk.img?cache=none");
    assert_eq!(named("san/paths.toml"), "/etc/lunway/san/paths.toml");
    assert_eq!(
        named("rbd:p/i?conf=a.conf&keyring=/k&id=x"),
        "rbd:p/i?conf=/etc/lunway/a.conf&id=x&keyring=/k"
    );
    for other in ["/dev/sdb", "ram:1M", "iscsi://h/iqn.a:b/0"] {
        assert_eq!(named(other), other);
    }
    let located = |text: &str| DeviceSpec::located(text, Path::new("/etc/lun way")).unwrap();
    assert_eq!(
        located("stats:iscsi://u@h/iqn.a:b/0?secret_file=a%20b&target_user=t&target_secret_file=../c"),
        "stats:iscsi://u@h/iqn.a:b/0?secret_file=/etc/lun%20way/a%20b&target_user=t&target_secret_file=/etc/lun%20way/../c"
    );
    assert_eq!(
        located("iscsi://u%hunter2@h/iqn.a:b/0?target_secret_file=c"),
        "iscsi://u%hunter2@h/iqn.a:b/0?target_secret_file=/etc/lun%20way/c"
    );
    for other in ["iscsi://u@h/iqn.a:b/0?secret_file=/s", "iscsi://u@h/iqn.a:b/0?secret_file=%2Fs", "ram:1M"]
    {
        assert_eq!(located(other), other);
    }
    assert_eq!(located("stats:disk.img"), "stats:/etc/lun way/disk.img");
}

#[test]
fn a_point_is_the_newest_one_unless_it_is_named() {
    let named = |folder: &str, point: &str, writes, timeout| {
        let (folder, point) = (folder.into(), point.to_owned());
        Ok(DeviceSpec::Point { name: PointName { folder, point, writes, timeout, key_file: None } })
    };
    let with_key = |spec: Result<DeviceSpec, SpecError>, file: &str| match spec {
        Ok(DeviceSpec::Point { name }) => {
            Ok(DeviceSpec::Point { name: PointName { key_file: Some(file.into()), ..name } })
        }
        other => other,
    };
    let point = |folder: &str, point: &str, discards| {
        let writes = if discards { PointWrites::Discarded } else { PointWrites::Refused };
        named(folder, point, writes, None)
    };
    let kept = |file: &str| PointWrites::Kept(file.into());
    for (text, expected) in [
        ("point:/mnt/share/db", point("/mnt/share/db", "latest", false)),
        ("point:/mnt/share/db@3f2a", point("/mnt/share/db", "3f2a", false)),
        ("point:db@2026-11-22T10:00?writes=discard", point("db", "2026-11-22T10:00", true)),
        ("point:/mnt/a@b/db", point("/mnt/a@b/db", "latest", false)),
        ("point:/mnt/a@b@latest", point("/mnt/a@b", "latest", false)),
        ("point:", Err(SpecError::PointForm)),
        ("point:db@", Err(SpecError::PointForm)),
        ("point:@3f2a", Err(SpecError::PointForm)),
        ("point:db?writes=keep", Err(SpecError::PointWrites { value: "keep".to_owned() })),
        ("point:db?into=/srv/vm.vhdx", named("db", "latest", kept("/srv/vm.vhdx"), None)),
        ("point:db@3f?into=a&b?c@d.vhdx", named("db", "3f", kept("a&b?c@d.vhdx"), None)),
        ("point:a?b@3f?into=c", named("a?b", "3f", kept("c"), None)),
        ("point:db?timeout=5s&into=c", named("db", "latest", kept("c"), Some(Duration::from_secs(5)))),
        ("point:r/db?key-file=/k", with_key(point("r/db", "latest", false), "/k")),
        ("point:r/db@3f?key-file=k&writes=discard", with_key(point("r/db", "3f", true), "k")),
        ("point:r/db?key-file=k&into=a&b", with_key(named("r/db", "latest", kept("a&b"), None), "k")),
        ("point:r/db?key-file=", Err(SpecError::PointForm)),
        ("point:db?into=", Err(SpecError::PointForm)),
        ("point:db?writes=discard&into=c", Err(SpecError::PointForm)),
        ("point:db?timeout=5s", Err(SpecError::PointForm)),
        ("point:db?timeout=5s&cache=none&into=c", Err(SpecError::PointForm)),
    ] {
        assert_eq!(DeviceSpec::parse(text), expected, "{text}");
    }
    let located = DeviceSpec::located("readonly:point:db@3f2a", Path::new("/etc"));
    assert_eq!(located.unwrap(), "readonly:point:/etc/db@3f2a");
    let located = DeviceSpec::located("point:db?timeout=5s&into=c.vhdx", Path::new("/etc"));
    assert_eq!(located.unwrap(), "point:/etc/db@latest?timeout=5s&into=/etc/c.vhdx");
    let located = DeviceSpec::located("point:db?key-file=k&writes=discard", Path::new("/etc"));
    assert_eq!(located.unwrap(), "point:/etc/db@latest?key-file=/etc/k&writes=discard");
}

#[test]
fn nesting_ends_at_the_limit() {
    let nested = |depth: usize| DeviceSpec::parse(&format!("{}ram:1M", "stats:".repeat(depth)));
    assert!(nested(DEPTH_MAX).is_ok());
    assert_eq!(nested(DEPTH_MAX + 1), Err(SpecError::TooDeep));
    assert_eq!(nested(1_000_000), Err(SpecError::TooDeep));
}

#[test]
fn a_secret_is_kept_but_never_printed() {
    let text = "delay:1ms:iscsi://user%hunter2@host/iqn.2026-01.example:d/1";
    let spec = DeviceSpec::parse(text).unwrap();
    assert_eq!(spec.to_string(), "delay:1ms:iscsi://user%***@host/iqn.2026-01.example:d/1");
    assert!(!format!("{spec:?} {spec:#?}").contains("hunter2"));
    let DeviceSpec::Delay { inner, .. } = &spec else { panic!("{spec:?}") };
    let DeviceSpec::Iscsi { url } = &**inner else { panic!("{inner:?}") };
    assert_eq!(url.expose_secret(), "iscsi://user%hunter2@host/iqn.2026-01.example:d/1");
}

fn any_spec() -> impl Strategy<Value = DeviceSpec> {
    let leaf = prop_oneof![
        (1..=u64::MAX).prop_map(|size| DeviceSpec::Ram { size }),
        (1..=u64::MAX).prop_map(|size| DeviceSpec::Null { size }),
        ("[a-z./:]{1,12}(\\.vhdx|\\?cache=none|\\?cache=x)?", any::<bool>(), any::<bool>()).prop_map(
            |(path, direct, raw)| {
                let cache = if direct { FileCache::None } else { FileCache::WriteBack };
                let format = if raw { FileFormat::Raw } else { FileFormat::Unsaid };
                DeviceSpec::File { path: path.into(), format, cache }
            }
        ),
        "[a-z./:]{1,12}(\\.vhdx)?".prop_map(|path| DeviceSpec::Vhdx { path: path.into() }),
        ("[a-z]{1,3}(:[a-z]{1,3})?(/[a-z.]{1,4}){1,2}(@[a-z]{1,4})?", any::<Option<u32>>(), "[0-9.:/]{0,9}")
            .prop_map(|(text, seconds, holder)| {
                let mut name = RbdName::parse(&text).unwrap();
                name.timeout = seconds.filter(|time| *time > 0).map(|time| Duration::from_secs(time.into()));
                name.break_lock = Some(holder).filter(|holder| !holder.is_empty());
                name.share = name.break_lock.clone();
                DeviceSpec::Rbd { name }
            }),
        (
            "[a-z./:@?]{1,12}",
            "[a-z0-9:-]{1,9}",
            "[a-z./:@?&=]{0,9}",
            any::<Option<u64>>(),
            "[a-z./:@?=]{0,5}"
        )
            .prop_map(|(folder, point, file, nanos, key)| {
                let writes = match &*file {
                    "" => PointWrites::Refused,
                    file if file.starts_with('d') => PointWrites::Discarded,
                    file => PointWrites::Kept(file.into()),
                };
                let timeout = nanos.filter(|_| matches!(writes, PointWrites::Kept(_)));
                let timeout = timeout.map(Duration::from_nanos);
                let key_file = Some(key).filter(|key| !key.is_empty()).map(Into::into);
                let name = PointName { folder: folder.into(), point, writes, timeout, key_file };
                DeviceSpec::Point { name }
            }),
        ("[a-z]{1,5}|[0-9a-f]{1,3}::[0-9]", 1_u16.., ".{0,9}").prop_map(|(host, port, export)| {
            let export = export.replace('\0', "");
            DeviceSpec::Nbd { uri: NbdUri { endpoint: NbdEndpoint::Tcp { host, port }, export } }
        }),
        "[a-z ?&=%./:]{1,12}".prop_map(|socket| DeviceSpec::Nbd { uri: NbdUri::on_socket(socket) }),
        ("[a-z./:]{1,12}(\\.vhd|\\.qcow2)?", any::<bool>()).prop_map(|(path, vhd)| DeviceSpec::Image {
            path: path.into(),
            format: if vhd { ImageFormat::Vhd } else { ImageFormat::Qcow2 },
        }),
    ];
    leaf.prop_recursive(6, 7, 1, |inner| {
        let inner = inner.prop_map(Box::new);
        prop_oneof![
            (any::<u64>(), inner.clone())
                .prop_map(|(nanos, inner)| DeviceSpec::Delay { time: Duration::from_nanos(nanos), inner }),
            (any::<NonZeroU64>(), inner.clone())
                .prop_map(|(bytes_per_second, inner)| DeviceSpec::Rate { bytes_per_second, inner }),
            inner.clone().prop_map(|inner| DeviceSpec::ReadOnly { inner }),
            inner.prop_map(|inner| DeviceSpec::Stats { inner }),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_as_itself(spec in any_spec()) {
        prop_assert_eq!(DeviceSpec::parse(&spec.to_string()), Ok(spec));
    }

    #[test]
    fn no_text_panics(text in "((ram|delay|rate|fault|iscsi|readonly|file)(:|://|%|@|=|,|-|[0-9]|[a-z]){0,8}){0,5}|.*") {
        if let Ok(spec) = DeviceSpec::parse(&text) {
            let _ = (spec.to_string(), format!("{spec:?}"));
        }
    }
}
