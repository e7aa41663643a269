# Collects facts of a Windows machine that reaches iSCSI storage, for `lunway doctor --from FILE`.
#
#   powershell -ExecutionPolicy Bypass -File doctor-windows.ps1 > windows.json
#   lunway doctor --from windows.json
#
# NOT RUN HERE: written from Microsoft's documentation, and never run on Windows by its authors; a grammar of PowerShell
# (tree-sitter-powershell 0.26.4) parses it without an error. What it cannot read it writes as {"unseen": "the reason"},
# which doctor shows as unknown. It changes nothing. It runs on Windows PowerShell 5.1 and later; as an ordinary user some
# facts are unseen.
#
# Sources, all on learn.microsoft.com:
#   MPIO timers               module MPIO, Get-MPIOSetting, Get-MSDSMGlobalDefaultLoadBalancePolicy, Get-MSDSMAutomaticClaimSettings
#   Disk\TimeOutValue         "Registry entries for storage miniport drivers"
#   LinkDownTime and others   "iSCSI initiator registry entries", class {4D36E97B-E325-11CE-BFC1-08002BE10318}
#   TcpAckFrequency           support article 328890; TCPNoDelay: "Tcpip\Parameters\Interfaces"
#   sessions                  module iSCSI, Get-IscsiSession, Get-IscsiConnection
#   ports                     modules NetAdapter, DnsClient, NetTCPIP (Get-NetTCPConnection)

$ErrorActionPreference = 'Stop'

# Windows PowerShell 5.1 adds members to lists that came through a pipeline, and ConvertTo-Json writes an object for them.
# Of this process alone; PowerShell 6 and later have no such type data.
Remove-TypeData -TypeName System.Array -ErrorAction SilentlyContinue

function Seen([scriptblock]$read) {
    try {
        $value = & $read
        if ($null -eq $value) { return @{ unseen = 'Windows does not tell' } }
        return , $value
    } catch {
        return @{ unseen = "$($_.Exception.Message)" }
    }
}

function Number($key, $name, $default) {
    $value = (Get-ItemProperty -Path $key -ErrorAction Stop).$name
    if ($null -eq $value) { return $default }
    return [uint64]$value
}

$services = 'HKLM:\SYSTEM\CurrentControlSet\Services'

$mpio = Seen {
    $key = "$services\mpio\Parameters"
    @{
        PathVerifyEnabled      = Number $key 'PathVerifyEnabled' 0
        PathVerificationPeriod = Number $key 'PathVerificationPeriod' 30
        PDORemovePeriod        = Number $key 'PDORemovePeriod' 20
        RetryCount             = Number $key 'RetryCount' 3
        RetryInterval          = Number $key 'RetryInterval' 1
    }
}

# The initiator is one of the numbered drivers of the class of SCSI adapters.
$initiator = Seen {
    $class = 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4D36E97B-E325-11CE-BFC1-08002BE10318}'
    $driver = Get-ChildItem $class -ErrorAction SilentlyContinue |
        Where-Object { (Get-ItemProperty $_.PSPath -ErrorAction SilentlyContinue).DriverDesc -eq 'Microsoft iSCSI Initiator' } |
        Select-Object -First 1
    if ($null -eq $driver) { throw 'the Microsoft iSCSI Initiator is not installed' }
    $key = Join-Path $driver.PSPath 'Parameters'
    @{
        LinkDownTime       = Number $key 'LinkDownTime' 15
        MaxRequestHoldTime = Number $key 'MaxRequestHoldTime' 60
    }
}

# Addresses of a connection or session that was not bound to a source address: Windows tells one of them, or nothing.
$unbound = @('', '0.0.0.0', '::')

# TCP knows the address that a connection which was not bound leaves by.
function LocalAddress($connection) {
    $address = [string]$connection.InitiatorAddress
    if ($address -notin $unbound) { return $address }
    $tcp = Get-NetTCPConnection -State Established -RemoteAddress $connection.TargetAddress -RemotePort $connection.TargetPortNumber |
        Select-Object -First 1
    return [string]$tcp.LocalAddress
}

$connections = $null
$sessions = Seen {
    $script:connections = @(Get-IscsiConnection)
    $list = foreach ($session in @(Get-IscsiSession)) {
        $connection = @($session | Get-IscsiConnection)[0]
        @{
            identifier = [string]$session.SessionIdentifier
            target     = [string]$session.TargetNodeAddress
            local      = try { LocalAddress $connection } catch { [string]$connection.InitiatorAddress }
            portal     = [string]$connection.TargetAddress
            persistent = [bool]$session.IsPersistent
            bound      = ([string]$session.InitiatorPortalAddress -notin $unbound)
        }
    }
    , @($list)
}

$ports = Seen {
    if ($null -eq $script:connections) { throw 'its connections are not seen' }
    $addresses = @($script:connections | ForEach-Object { LocalAddress $_ } | Sort-Object -Unique)
    $list = foreach ($address in $addresses) {
        $ip = Get-NetIPAddress -IPAddress $address
        $adapter = Get-NetAdapter -InterfaceIndex $ip.InterfaceIndex
        $key = "$services\Tcpip\Parameters\Interfaces\$($adapter.InterfaceGuid)"
        $name = $adapter.Name
        @{
            name              = [string]$name
            tcp_ack_frequency = Seen { Number $key 'TcpAckFrequency' 2 }
            tcp_no_delay      = Seen { Number $key 'TCPNoDelay' 0 }
            power_saving      = Seen { (Get-NetAdapterPowerManagement -Name $name).AllowComputerToTurnOffDevice -eq 'Enabled' }
            registers_dns     = Seen { [bool](Get-DnsClient -InterfaceIndex $ip.InterfaceIndex).RegisterThisConnectionsAddress }
            # TcpipNetbiosOptions: 0 by DHCP, 1 on, 2 off.
            netbios           = Seen {
                $filter = "InterfaceIndex = $($ip.InterfaceIndex)"
                (Get-CimInstance Win32_NetworkAdapterConfiguration -Filter $filter).TcpipNetbiosOptions -ne 2
            }
            netbios_option    = try {
                [uint64](Get-CimInstance Win32_NetworkAdapterConfiguration -Filter "InterfaceIndex = $($ip.InterfaceIndex)").TcpipNetbiosOptions
            } catch { $null }
            ipv6              = Seen { [bool](Get-NetAdapterBinding -Name $name -ComponentID ms_tcpip6).Enabled }
            mtu               = Seen { [uint64](Get-NetIPInterface -InterfaceIndex $ip.InterfaceIndex -AddressFamily IPv4).NlMtu }
            rss               = Seen { [bool](Get-NetAdapterRss -Name $name).Enabled }
        }
    }
    , @($list)
}

$facts = @{
    schema  = 1
    windows = @{
        name         = [string]$env:COMPUTERNAME
        mpio         = $mpio
        claims_iscsi = Seen { [bool](Get-MSDSMAutomaticClaimSettings)['iSCSI'] }
        policy       = Seen { [string](Get-MSDSMGlobalDefaultLoadBalancePolicy) }
        disk_timeout = Seen { Number "$services\Disk" 'TimeOutValue' 60 }
        initiator    = $initiator
        ports        = $ports
        sessions     = $sessions
    }
}

# cmd.exe writes the code page of the console to a file: other characters than those of ASCII are escaped.
$json = ConvertTo-Json -InputObject $facts -Depth 8
[regex]::Replace($json, '[^\x00-\x7f]', { param($match) '\u{0:x4}' -f [int]$match.Value[0] })
