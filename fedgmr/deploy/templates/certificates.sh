#!/bin/sh
# Makes the SuperLink's certificate, its authority, and the secret between SuperLink and SuperExec.
# Usage: sh certificates.sh FOLDER NAME [NAME ...]
# NAME: a host name or IP address under which nodes reach the SuperLink; localhost is added for the server itself.
# Called again it makes the next certificate; the authority, which the nodes know, and the secret stay.
set -eu
if [ $# -lt 2 ]; then
    echo "Usage: sh certificates.sh FOLDER NAME [NAME ...]" >&2
    exit 2
fi
folder=$1
shift
names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
    case $name in
    *:*) kind=IP ;;
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
    esac
    names="$names,$kind:$name"
done
(umask 022 && mkdir -p "$folder") # whoever uses the certificates must get there; the secrets are closed themselves
cd "$folder"
umask 077
if [ ! -e ca.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 -subj "/CN=fedgmr authority" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt
elif [ ! -e ca.key ]; then
    echo "certificates.sh: $folder has ca.crt, and no ca.key to sign with: put it back." >&2
    exit 1
fi
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$1" \
    -keyout superlink.key -out superlink.csr
cat >superlink.ext <<END
basicConstraints=CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
authorityKeyIdentifier=keyid
subjectAltName=$names
END
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile superlink.ext \
    -out superlink.crt
[ -e superexec.secret ] || openssl rand -out superexec.secret 32
rm -f superlink.csr superlink.ext ca.srl
chmod 644 ca.crt superlink.crt
