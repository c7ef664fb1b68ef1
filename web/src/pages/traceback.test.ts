import { expect, test } from 'vitest'
import { cause, fileToken } from './traceback'

test('the innermost line of the file counts, not that of a library', () => {
  const trace = 'Traceback (most recent call last):\n  File "/srv/dags/a.py", line 3, in <module>\n    f()\n  File "/srv/dags/a.py", line 9, in f\n    g()\n  File "/lib/g.py", line 70, in g\nRuntimeError: no\n'

  expect(cause(trace, 'a.py')).toEqual({ line: 9, text: 'RuntimeError: no' })
  expect(cause('RuntimeError: no', 'a.py')).toEqual({ line: null, text: 'RuntimeError: no' })
})

test('a token is base64 for an address', () => expect(fileToken('ö/ÿ~?.py')).toBe('w7Yvw79-Py5weQ'))
