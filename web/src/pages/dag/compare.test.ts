import { expect, test } from 'vitest'
import { lines, type Compared } from './compare'

const side = (state: string, seconds: number | null, tries = 1) => ({ states: { [state]: 1 }, tries, seconds, waited: 0 }) as NonNullable<Compared['now']>
const task = (task_id: string, now: Compared['now'], before: Compared['before']): Compared => ({ task_id, now, before })

test('another state comes first, then what became slowest; noise is no difference', () => {
  const found = lines([
    task('same', side('success', 10.4), side('success', 10)),
    task('slower', side('success', 60), side('success', 10)),
    task('faster', side('success', 1), side('success', 90)),
    task('failed', side('failed', 3), side('success', 3)),
    task('new', side('success', 1), null),
    task('retried', side('success', 5, 2), side('success', 5)),
  ])

  expect(found.map((line) => [line.task.task_id, line.differs])).toEqual([['failed', true], ['new', true], ['faster', true], ['slower', true], ['retried', true], ['same', false]])
  expect(found[3]!.slower).toBe(50)
  expect(found[1]!.slower).toBeNull()
})
