"""Small files in the layout of OSCAR's RotationZoo, for tests/unit/test_calibration_import.c and the fuzz corpus, by torch.save.

    python tests/golden-tools/rotationzoo_files.py tests/data/rotationzoo tests/fuzz/corpus/rotationzoo
"""
import collections
import os
import pickle
import sys
import zipfile

import torch

data, corpus = sys.argv[1:]
torch.manual_seed(5)


def layers(n, d):
    return {i: {'layer_id': i, 'rotation': torch.linalg.qr(torch.randn(d, d))[0].contiguous(), 'eigenvalues': torch.arange(d).float()}
            for i in range(n)}


def save(folder, name, objective, content):
    torch.save({'format_version': 1, 'objective': objective, 'source_grouping': 'layer', 'layers': content}, os.path.join(folder, name))


k, v = layers(2, 64), layers(2, 64)
save(data, 'k.pt', 'qqt_r_h_pbr', k)
save(data, 'v.pt', 'sst_r_h_pbr', v)
with open(os.path.join(data, 'k-first-row.txt'), 'w') as f:  # what the reader must find: first row of layer 1
    f.write('\n'.join('%.9g' % x for x in k[1]['rotation'][0].tolist()) + '\n')
bent = layers(2, 64)
bent[1]['rotation'][3, 3] += .1
save(data, 'bent.pt', 'qqt_r_h_pbr', bent)
save(corpus, 'one', 'qqt', {0: {'rotation': torch.eye(2)}})
save(corpus, 'ordered', 'qqt', collections.OrderedDict({0: {'rotation': torch.eye(2)[0]}}))
save(corpus, 'half', 'qqt', {0: {'rotation': torch.eye(2).half()}})


class Call:
    def __reduce__(self):
        return os.system, ('true',)


with zipfile.ZipFile(os.path.join(data, 'call.pt'), 'w') as z:  # wants to run a command when it is loaded
    z.writestr('call/data.pkl', pickle.dumps({'layers': Call()}, protocol=2))
with zipfile.ZipFile(os.path.join(corpus, 'packed'), 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('x/data.pkl', pickle.dumps({'layers': {}}, protocol=2) * 9)
with open(os.path.join(corpus, 'cut'), 'wb') as f:
    f.write(open(os.path.join(corpus, 'one'), 'rb').read()[:900])
