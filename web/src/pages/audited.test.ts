import { describe, expect, it } from 'vitest'
import type { EventLog } from '../api/types'
import { fold, sentence, subject, subjects } from './audited'

describe('the subject of a request', () => {
  it('is named in its path, or in its body', () => {
    expect(subject('{"pool_name": "gpu", "body": {"slots": 2}}')).toBe('gpu')
    expect(subject('{"name": "grace"}')).toBe('grace')
    expect(subject('{"tables": ["shop.orders", "shop.items"]}')).toBe('shop.orders, shop.items')
    expect(subject('{"body": {"key": "smtp_host", "value": "***"}}')).toBe('smtp_host')
    expect(subject('{"body": {"connection_id": "db", "name": ""}}')).toBe('db')
  })
  it('is empty where nothing is named', () => {
    for (const extra of [null, '', '{', 'null', '7', '[]', '{"body": "12345 characters"}', '{"body": {"name": 7}}', '{"body": null}']) expect(subject(extra)).toBe('')
  })
})

const entry = (event_log_id: number, owner: string, event: string, dag_id: string | null, status = 200, body: object = {}) => ({ event_log_id, owner, event, dag_id, run_id: null, task_id: null, map_index: null, status, when: '', address: '', extra: JSON.stringify({ body }) }) as unknown as EventLog

it('equal changes that follow each other are one sentence', () => {
  const found = fold([
    entry(9, 'ada', 'patch_dag', 'c', 200, { is_paused: true }), entry(8, 'ada', 'patch_dag', 'b', 200, { is_paused: true }), entry(7, 'ada', 'patch_dag', 'a', 200, { is_paused: false }),
    entry(6, 'bob', 'patch_dag', 'a', 200, { is_paused: false }), entry(5, 'bob', 'delete_dag', 'a', 403), entry(2, 'bob', 'delete_dag', 'b', 409), entry(1, 'bob', 'delete_dag', 'a', 409), entry(4, 'bob', 'new_thing', null), entry(3, 'bob', 'new_thing', null),
  ])

  expect(found.map((one) => [one.owner, sentence(one)])).toEqual([
    ['ada', 'paused 2 DAGs'], ['ada', 'unpaused a DAG'], ['bob', 'unpaused a DAG'], ['bob', 'tried to delete a DAG, which was refused'], ['bob', 'tried to delete 2 DAGs, which failed'], ['bob', 'new thing, 2 times'],
  ])
  expect(subjects(found[0]!)).toBe('c, b')
  expect(subjects({ ...found[0]!, others: ['x', 'y', 'z'].map((name, at) => entry(at, 'ada', 'patch_dag', name)) })).toBe('c, x, y and 1 more')
})

it('a note is not called a mark', () => {
  const said = (event: string, body: object) => sentence({ ...entry(1, 'ada', event, 'a', 200, body), others: [] })
  expect(said('patch_dag_run', { note: 'slow disk' })).toBe('wrote the note of a run')
  expect(said('patch_dag_run', { state: 'failed', note: 'slow disk' })).toBe('marked a run as failed')
  expect(said('patch_task_instance_by_map_index', { note: null, include_past: false })).toBe('wrote the note of a task')
  expect(said('patch_task_instance', { new_state: 'success' })).toBe('marked a task')
})
