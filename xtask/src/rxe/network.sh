# SPDX-License-Identifier: MIT
# Soft-RoCE devices of the guest, by $RXE_NETWORK: "one" is rxe0 on a device that
# needs no peer; "two" are rxe0 and rxe1, joined by a pair whose packets really
# cross it; "none".
rxe_network() {
    set -e
    case $RXE_NETWORK in
    none) ;;
    one)
        # Loading the module has made dummy0.
        ip address add 10.77.0.1/24 dev dummy0
        ip link set dummy0 mtu 4200 up
        rdma link add rxe0 type rxe netdev dummy0
        ;;
    two)
        ip link add veth0 mtu 4200 type veth peer name veth1 mtu 4200
        ip address add 10.77.0.1/24 dev veth0
        ip address add 10.77.0.2/24 dev veth1
        ip link set veth0 up
        ip link set veth1 up
        # The kernel would send to its own addresses by lo, where no rxe listens. So: what comes in by
        # the pair is local, what goes from one address to the other leaves by the pair, and only then
        # comes the table of local addresses, which is the first by default.
        for name in all veth0 veth1; do
            conf=/proc/sys/net/ipv4/conf/$name
            echo 1 >$conf/accept_local
            echo 0 >$conf/rp_filter
            echo 1 >$conf/arp_ignore
            echo 2 >$conf/arp_announce
        done
        ip rule add pref 10 iif veth0 lookup local
        ip rule add pref 11 iif veth1 lookup local
        ip route add 10.77.0.2/32 dev veth0 src 10.77.0.1 table 101
        ip route add 10.77.0.1/32 dev veth1 src 10.77.0.2 table 102
        ip rule add pref 20 from 10.77.0.1 to 10.77.0.2 lookup 101
        ip rule add pref 21 from 10.77.0.2 to 10.77.0.1 lookup 102
        ip rule add pref 30 lookup local
        ip rule del pref 0
        rdma link add rxe0 type rxe netdev veth0
        rdma link add rxe1 type rxe netdev veth1
        ;;
    *) echo "no network is called $RXE_NETWORK" >&2 && false ;;
    esac
}
